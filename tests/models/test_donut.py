"""Donut through the whole engine, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

import seeing
from test_images import engine, picture, seen
from zoo import spread

from thalweg import SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.errors import RequestError
from thalweg.media.processors import processor
from thalweg.models import registry

ROWS, COLUMNS, NEW = 48, 32, 10
SIZES = ((60, 40), (20, 28), (90, 30), (25, 110), (32, 48))
TASK = "<|vision_start|>"
PAD = seeing.IDS["<|endoftext|>"]
EYE = {
    "image_size": [ROWS, COLUMNS], "patch_size": 4, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 3], "window_size": 3,
    "mlp_ratio": 2.0,
}  # fmt: skip
TEXT = {
    "vocab_size": 288, "d_model": 48, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 96,
    "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 96, "max_position_embeddings": 64,
    "scale_embedding": True, "pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip


def make(path: Path) -> Any:
    pair = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.DonutSwinConfig(**EYE), transformers.MBartConfig(**TEXT)
    )
    pair.decoder_start_token_id, pair.pad_token_id = seeing.IDS[TASK], PAD
    model = transformers.VisionEncoderDecoderModel(pair).float().eval()
    index = {n: b.clone() for n, b in model.named_buffers()}
    spread(model, 6)
    with torch.no_grad():
        for name, p in (*model.named_parameters(), *model.named_buffers()):
            if name in index:
                p.copy_(index[name])
            elif "encoder_attn.out_proj.weight" in name:
                p.mul_(3)  # images must matter
            elif "bias_table" in name:
                p.normal_(0, 1)
    model.save_pretrained(path)
    reader().save_pretrained(path)
    seeing.write_tokenizer(path, "<image>")
    return model


def reader() -> Any:
    return transformers.DonutImageProcessorPil(size={"height": ROWS, "width": COLUMNS})


def greedy(model: Any, ids: list[int], image: Any) -> tuple[list[int], np.ndarray]:
    """(tokens, their log-probabilities)."""
    pixels = reader()(images=[image], return_tensors="pt")["pixel_values"]
    return seeing.generate_scored(model, NEW, len(ids), pixel_values=pixels, decoder_input_ids=torch.tensor([ids]))


@pytest.mark.slow
def test_texts_are_those_of_transformers(tmp_path: Path) -> None:
    """Prompts of several lengths, more than there are slots, and again with known ones."""
    model = make(tmp_path)
    images = [picture(*size, seed) for seed, size in enumerate(SIZES)]
    asked = [{"prompt": TASK + "what"[:i], "multi_modal_data": {"image": image}} for i, image in enumerate(images)]
    llm = engine(tmp_path, max_model_len=64, block_size=4)
    try:
        params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, logprobs=0)
        for _ in range(2):
            outs = llm.generate(asked, params, use_tqdm=False)
            for i, (image, out) in enumerate(zip(images, outs, strict=True)):
                ids = list(out.prompt_token_ids)
                assert (ids[0], len(ids)) == (seeing.IDS[TASK], 1 + i)
                tokens, scores = greedy(model, ids, image)
                assert list(out.outputs[0].token_ids) == tokens
                mine = [each[t].logprob for each, t in zip(out.outputs[0].logprobs, tokens, strict=True)]
                np.testing.assert_allclose(mine, scores, atol=1e-4)
        assert len({tuple(out.outputs[0].token_ids) for out in outs}) > 1
        with pytest.raises(RequestError, match="send an item with every prompt"):
            llm.generate(TASK, params, use_tqdm=False)
    finally:
        llm.shutdown()


def test_pixels_are_those_of_transformers(tmp_path: Path) -> None:
    make(tmp_path)
    ours = processor(read_config(tmp_path), tmp_path)
    assert ours is not None
    for seed, (width, height) in enumerate((*SIZES, (500, 300), (7, 40), (1, 1), (50, 50))):
        image = picture(width, height, seed)
        views, size = seen(image, ours)
        made, want = ours.source_array(views, size, 0), reader()(images=[image], return_tensors="np")["pixel_values"]
        np.testing.assert_allclose(made[1:], want.reshape(-1, COLUMNS), atol=2e-6, err_msg=f"{width} x {height}")


def test_the_name_that_users_of_vllm_override_has_the_same_model(tmp_path: Path) -> None:
    make(tmp_path)
    found = []
    for override in ({}, {"architectures": ["DonutForConditionalGeneration"], "model_type": "donut"}):
        config = read_config(tmp_path, override)
        found.append((registry.family(config)(config), processor(config, tmp_path)))
    assert found[0] == found[1]
