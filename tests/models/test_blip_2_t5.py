"""BLIP-2 with T5 through the whole engine, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

import seeing
from seeing_queries import BLIP
from test_images import SIZES, engine, picture, seen
from zoo import spread

from thalweg import SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.errors import RequestError
from thalweg.media.processors import processor

TOKEN, NEW, VECTORS = "<image>", 10, 5
TEXT = {
    "model_type": "t5", "vocab_size": 288, "d_model": 48, "d_kv": 16, "d_ff": 72, "num_layers": 2, "num_heads": 3,
    "num_decoder_layers": 2, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "pad_token_id": 0,
    "eos_token_id": 1, "decoder_start_token_id": 0,
}  # fmt: skip
QFORMER = {
    "hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 40, "encoder_hidden_size": 32,
}  # fmt: skip


def make(path: Path) -> Any:
    config = transformers.Blip2Config(
        text_config=TEXT, vision_config=BLIP, qformer_config=QFORMER, num_query_tokens=VECTORS,
        image_token_index=seeing.IDS[TOKEN],
    )  # fmt: skip
    model = transformers.Blip2ForConditionalGeneration._from_config(config, attn_implementation="eager").float().eval()
    spread(model, 4)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "EncDecAttention.o.weight" in name:
                p.mul_(3)  # sources must matter
    model.save_pretrained(path)
    reader().save_pretrained(path)
    seeing.write_tokenizer(path, TOKEN)
    said = {"decoder_start_token_id": 0, "eos_token_id": [1], "pad_token_id": 0}
    (path / "generation_config.json").write_text(json.dumps(said))
    return model


def reader() -> Any:
    return transformers.BlipImageProcessorPil(size={"height": 28, "width": 28})


def greedy(model: Any, ids: list[int], image: Any) -> tuple[list[int], np.ndarray]:
    """(tokens, their log-probabilities) of a source."""
    tokens = torch.tensor([ids])
    inner = model.language_model
    inner.generation_config.eos_token_id = inner.generation_config.forced_eos_token_id = None
    if image is None:
        return seeing.generate_scored(inner, NEW, 1, inputs=tokens)
    out = model.generate(
        pixel_values=reader()(images=[image], return_tensors="pt")["pixel_values"], input_ids=tokens, do_sample=False,
        max_new_tokens=NEW, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    made = out.sequences[0].tolist()[1:]
    return made, torch.cat(out.logits).log_softmax(-1).gather(1, torch.tensor(made)[:, None])[:, 0].numpy()


@pytest.mark.slow
def test_answers_are_those_of_transformers(tmp_path: Path) -> None:
    """Sources with an image and without one in one batch, and again."""
    model = make(tmp_path)
    images = [None, *(picture(*size, seed) for seed, size in enumerate(SIZES))]
    asked: list[Any] = ["hello there"]
    asked += [{"prompt": f"what is {i}", "multi_modal_data": {"image": image}} for i, image in enumerate(images[1:])]
    llm = engine(tmp_path, max_model_len=64, block_size=4)
    try:
        params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, logprobs=0)
        for _ in range(2):
            outs = llm.generate(asked, params, use_tqdm=False)
            for image, out in zip(images, outs, strict=True):
                ids = list(out.prompt_token_ids)
                assert ids[:VECTORS].count(seeing.IDS[TOKEN]) == (0 if image is None else VECTORS)
                tokens, scores = greedy(model, ids, image)
                assert list(out.outputs[0].token_ids) == tokens
                mine = [each[t].logprob for each, t in zip(out.outputs[0].logprobs, tokens, strict=True)]
                np.testing.assert_allclose(mine, scores, atol=1e-4)
        assert len({tuple(out.outputs[0].token_ids) for out in outs}) > 1
        with pytest.raises(RequestError, match="2 images; this model reads one in a prompt"):
            llm.generate({"prompt": "<image><image>", "multi_modal_data": {"image": images[1:3]}}, params, use_tqdm=False)
    finally:
        llm.shutdown()


def test_pixels_are_those_of_transformers(tmp_path: Path) -> None:
    make(tmp_path)
    ours: Any = processor(read_config(tmp_path), tmp_path)
    for seed, (width, height) in enumerate((*SIZES, (500, 300), (1, 1), (1, 40))):
        image = picture(width, height, seed)
        views, size = seen(image, ours)
        made, want = ours.source_array(views, size, 0), reader()(images=[image], return_tensors="np")["pixel_values"]
        assert made[0, 0] == 28
        np.testing.assert_allclose(made[0, 1:], want.reshape(-1), atol=2e-6)
    assert ours.count((1, 1)) == VECTORS
    assert ours.complete("what <image>is this") == "<image>what is this"


def test_published_files_omit_the_size_of_the_vocabulary(tmp_path: Path) -> None:
    """That of T5's configuration class."""
    make(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    del said["text_config"]["vocab_size"]
    (tmp_path / "config.json").write_text(json.dumps(said))
    assert read_config(tmp_path)["vocab_size"] == transformers.T5Config().vocab_size


@pytest.mark.slow
def test_the_text_part_alone_reads_no_image(tmp_path: Path) -> None:
    model = make(tmp_path)
    llm = engine(tmp_path, max_model_len=64, block_size=4, language_model_only=True)
    try:
        out = llm.generate("hello", SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True), use_tqdm=False)[0]
        assert list(out.outputs[0].token_ids) == greedy(model, list(out.prompt_token_ids), None)[0]
    finally:
        llm.shutdown()
