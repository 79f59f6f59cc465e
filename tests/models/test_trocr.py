"""TrOCR through the whole engine, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

import seeing
from test_images import asks, engine, picture, seen
from zoo import spread

from thalweg import SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.errors import RequestError, UnsupportedModelError
from thalweg.media.processors import processor
from thalweg.models import registry

SIDE, PATCH, NEW, START = 28, 7, 10, 2
SIZES = ((60, 40), (20, 28), (90, 30), (25, 110), (28, 28))
EYE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": SIDE,
    "patch_size": PATCH,
}  # fmt: skip
TEXT = {
    "vocab_size": 288, "d_model": 48, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 96,
    "max_position_embeddings": 64, "decoder_start_token_id": START,
}  # fmt: skip
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "vit": (transformers.ViTConfig(**EYE, qkv_bias=False), {"cross_attention_hidden_size": 32}),
    "deit": (transformers.DeiTConfig(**EYE), {"tie_word_embeddings": False, "scale_embedding": True}),
}


def make(name: str, path: Path) -> Any:
    eye, more = KINDS[name]
    pair = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(eye, transformers.TrOCRConfig(**TEXT, **more))
    pair.decoder_start_token_id = START
    model = transformers.VisionEncoderDecoderModel(pair).float().eval()
    spread(model, 6)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "encoder_attn.out_proj.weight" in key:
                p.mul_(3)  # images must matter
    model.save_pretrained(path)
    reader().save_pretrained(path)
    seeing.write_tokenizer(path, "")
    return model


def reader() -> Any:
    return transformers.ViTImageProcessorPil(size={"height": SIDE, "width": SIDE})


def greedy(model: Any, image: Any) -> tuple[list[int], np.ndarray]:
    """(tokens, their log-probabilities)."""
    pixels = reader()(images=[image], return_tensors="pt")["pixel_values"]
    return seeing.generate_scored(model, NEW, 1, pixel_values=pixels, decoder_start_token_id=START)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_texts_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """More images than sequences fit, and again with known ones. A conversation is one image."""
    model = make(name, tmp_path)
    images = [picture(*size, seed) for seed, size in enumerate(SIZES)]
    asked = [{"prompt": "", "multi_modal_data": {"image": image}} for image in images]
    llm = engine(tmp_path, max_model_len=64, block_size=4)
    try:
        params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, logprobs=0)
        for _ in range(2):
            outs = llm.generate(asked, params, use_tqdm=False)
            for image, out in zip(images, outs, strict=True):
                assert list(out.prompt_token_ids) == [START]
                tokens, scores = greedy(model, image)
                assert list(out.outputs[0].token_ids) == tokens
                mine = [each[t].logprob for each, t in zip(out.outputs[0].logprobs, tokens, strict=True)]
                np.testing.assert_allclose(mine, scores, atol=1e-4)
        chat = llm.chat([asks(image) for image in images], params, use_tqdm=False)
        assert [out.outputs[0].token_ids for out in chat] == [out.outputs[0].token_ids for out in outs]
        assert len({tuple(out.outputs[0].token_ids) for out in outs}) > 1
        with pytest.raises(RequestError, match="send an item with every prompt"):
            llm.generate("hello", params, use_tqdm=False)
        with pytest.raises(RequestError, match="a text or one image"):
            llm.generate({"prompt": "what?", "multi_modal_data": {"image": images[0]}}, params, use_tqdm=False)
    finally:
        llm.shutdown()


def test_pixels_are_those_of_transformers(tmp_path: Path) -> None:
    make("vit", tmp_path)
    ours = processor(read_config(tmp_path), tmp_path)
    assert ours is not None
    for seed, (width, height) in enumerate((*SIZES, (500, 300), (1, 1), (1, 40))):
        image = picture(width, height, seed)
        views, size = seen(image, ours)
        made, want = ours.source_array(views, size, 0), reader()(images=[image], return_tensors="np")["pixel_values"]
        np.testing.assert_allclose(made[1:], seeing.cut_patches(want, PATCH), atol=2e-6)


def test_other_pairs_are_refused() -> None:
    config = {"architectures": ["VisionEncoderDecoderModel"], "model_type": "gpt2", "vision_config": {"model_type": "swin"}}
    with pytest.raises(UnsupportedModelError, match="'swin' and 'gpt2' are not supported"):
        registry.family(config)(config)
