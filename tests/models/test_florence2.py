"""Florence-2 through the whole engine, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

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

TOKEN, SIDE, NEW, VECTORS = "<|image|>", 40, 10, 26
SIZES = ((60, 40), (20, 28), (90, 30), (40, 40))
EYE = {
    "embed_dim": [16, 48], "depths": [1, 2], "patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1],
    "patch_prenorm": [False, True], "num_heads": [2, 4], "num_groups": [4, 3], "window_size": 4, "projection_dim": 48,
    "max_position_embeddings": 9, "mlp_ratio": 2.0,
}  # fmt: skip
TEXT = {
    "model_type": "bart", "vocab_size": 288, "d_model": 48, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 3, "decoder_attention_heads": 4, "encoder_ffn_dim": 80, "decoder_ffn_dim": 96,
    "max_position_embeddings": 80, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
    "forced_eos_token_id": None, "is_encoder_decoder": True,
}  # fmt: skip


def make(path: Path) -> Any:
    config = transformers.Florence2Config(text_config=TEXT, vision_config=EYE, image_token_id=seeing.IDS[TOKEN])
    model = transformers.Florence2ForConditionalGeneration._from_config(config, attn_implementation="eager").float().eval()
    spread(model, 4)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "encoder_attn.out_proj.weight" in name:
                p.mul_(3)  # sources must matter
    model.save_pretrained(path)
    reader().save_pretrained(path)
    seeing.write_tokenizer(path, "<image>")
    said = {"decoder_start_token_id": 2, "eos_token_id": [2], "pad_token_id": 1}
    (path / "generation_config.json").write_text(json.dumps(said))
    return model


def reader() -> Any:
    return transformers.CLIPImageProcessorPil(size={"height": SIDE, "width": SIDE}, do_center_crop=False)


def greedy(model: Any, ids: list[int], image: Any) -> tuple[list[int], np.ndarray]:
    """(tokens, their log-probabilities) of a source."""
    placeholder = seeing.IDS[TOKEN]
    ids = [i for i in ids if i == placeholder] + [i for i in ids if i != placeholder]
    pixels = {} if image is None else {"pixel_values": reader()(images=[image], return_tensors="pt")["pixel_values"]}
    return seeing.generate_scored(model, NEW, 1, inputs=torch.tensor([ids]), **pixels)


@pytest.mark.slow
def test_answers_are_those_of_transformers(tmp_path: Path) -> None:
    """Sources with an image and without one in one batch, and again."""
    model = make(tmp_path)
    images = [None, *(picture(*size, seed) for seed, size in enumerate(SIZES))]
    asked: list[Any] = ["hello there"]
    asked += [{"prompt": f"<image>what is {i}", "multi_modal_data": {"image": image}} for i, image in enumerate(images[1:])]
    llm = engine(tmp_path, max_model_len=64, block_size=4)
    try:
        params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, logprobs=0)
        for _ in range(2):
            outs = llm.generate(asked, params, use_tqdm=False)
            for image, out in zip(images, outs, strict=True):
                ids = list(out.prompt_token_ids)
                assert ids.count(seeing.IDS[TOKEN]) == (0 if image is None else VECTORS)
                tokens, scores = greedy(model, ids, image)
                assert list(out.outputs[0].token_ids) == tokens
                mine = [each[t].logprob for each, t in zip(out.outputs[0].logprobs, tokens, strict=True)]
                np.testing.assert_allclose(mine, scores, atol=1e-4)
        assert len({tuple(out.outputs[0].token_ids) for out in outs}) > 1
        ways = ("<CAPTION>", "<image>What does the image describe?")
        outs = llm.generate([{"prompt": p, "multi_modal_data": {"image": images[1]}} for p in ways], params, use_tqdm=False)
        assert outs[0].prompt_token_ids == outs[1].prompt_token_ids
        with pytest.raises(RequestError, match="prompt: <OD> is a whole prompt"):
            llm.generate({"prompt": "<OD> now", "multi_modal_data": {"image": images[1]}}, params, use_tqdm=False)
        with pytest.raises(RequestError, match="2 images; this model reads one in a prompt"):
            llm.generate({"prompt": "<image><image>", "multi_modal_data": {"image": images[1:3]}}, params, use_tqdm=False)
    finally:
        llm.shutdown()


def test_pixels_are_those_of_transformers(tmp_path: Path) -> None:
    make(tmp_path)
    ours = processor(read_config(tmp_path), tmp_path)
    assert ours is not None
    for seed, (width, height) in enumerate((*SIZES, (500, 300), (1, 1), (1, 40))):
        image = picture(width, height, seed)
        views, size = seen(image, ours)
        made, want = ours.source_array(views, size, 0), reader()(images=[image], return_tensors="np")["pixel_values"]
        assert made[0, 0] == SIDE
        np.testing.assert_allclose(made[0, 1:], want.reshape(-1), atol=2e-6)
    assert ours.count((1, 1)) == VECTORS


def test_names_of_tasks_become_the_sentences_of_transformers(tmp_path: Path) -> None:
    make(tmp_path)
    ours = processor(read_config(tmp_path), tmp_path)
    assert ours is not None
    whole, reads = transformers.Florence2Processor.__new__(transformers.Florence2Processor), reader()
    reads.image_seq_length = VECTORS
    tokenizer = SimpleNamespace(all_special_tokens=[], image_token=TOKEN, image_token_id=seeing.IDS[TOKEN])
    with mock.patch.object(transformers.ProcessorMixin, "__init__", return_value=None):
        whole.__init__(reads, tokenizer)
    names = [*whole.task_prompts_without_inputs, *(f"{name} a red car" for name in whole.task_prompts_with_input), "what?"]
    assert len(names) == 16
    for name, want in zip(names, whole._construct_prompts(names), strict=True):
        assert ours.complete(name) == ours.complete(f"<image>{name}") == f"<image>{want}"
    with pytest.raises(ValueError, match="<OCR> is a whole prompt"):
        ours.complete("<image><OCR> of this")


def test_text_only_refuses_images(tmp_path: Path) -> None:
    model = make(tmp_path)
    llm = engine(tmp_path, language_model_only=True, max_model_len=64)
    try:
        params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
        out = llm.generate("hello", params, use_tqdm=False)[0]
        assert list(out.outputs[0].token_ids) == greedy(model, list(out.prompt_token_ids), None)[0]
        with pytest.raises(RequestError, match="not supported"):
            llm.generate({"prompt": "<image>", "multi_modal_data": {"image": picture(9, 9)}}, params, use_tqdm=False)
    finally:
        llm.shutdown()
