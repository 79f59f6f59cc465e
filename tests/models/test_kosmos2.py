"""Kosmos-2 through the whole engine, against transformers."""

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
from test_images import SIZES, engine, picture
from zoo import spread

from thalweg import SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.media.processors import processor
from thalweg.models import registry

NEW, QUERIES = 8, 5
EXTRA = ("</image>", "<s>", "<pad>", "<grounding>")
IDS = seeing.IDS | {name: 256 + len(seeing.NAMES) + i for i, name in enumerate(EXTRA)}
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 7,
}  # fmt: skip
TEXT = {
    "vocab_size": 300, "embed_dim": 48, "layers": 2, "ffn_dim": 72, "attention_heads": 4, "max_position_embeddings": 128,
    "pad_token_id": 1,
}  # fmt: skip


def make(path: Path) -> Any:
    """Positions of transformers begin behind the number of the padding token, which is 1 in published files."""
    config = transformers.Kosmos2Config(text_config=TEXT, vision_config=VISION, latent_query_num=QUERIES)
    model = transformers.Kosmos2ForConditionalGeneration._from_config(config, attn_implementation="eager").float().eval()
    spread(model, 5)
    with torch.no_grad():  # images must matter
        model.text_model.model.embed_tokens.weight.mul_(0.15)
        model.image_to_text_projection.dense.weight.mul_(6)
        model.image_to_text_projection.x_attn.out_proj.weight.mul_(6)
    model.save_pretrained(path)
    said = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**said, "pad_token_id": IDS["<pad>"]}))
    reader().save_pretrained(path)
    seeing.write_tokenizer(path, "<image>", EXTRA)
    return model


def reader() -> Any:
    return transformers.CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})


def greedy(model: Any, ids: list[int], image: Any) -> tuple[list[int], np.ndarray]:
    tokens, more = torch.tensor([ids]), {}
    if image is not None:
        pixels = reader()(images=[image], return_tensors="pt")["pixel_values"]
        states = model.vision_model.model.post_layernorm(model.vision_model(pixel_values=pixels)[0])
        more["image_embeds"] = model.image_to_text_projection(torch.nn.functional.normalize(states, dim=-1))[0]
    inner, made, scores = model.text_model, [], []
    for _ in range(NEW):
        if more:
            more["image_embeds_position_mask"] = (tokens == IDS["<pad>"]).long()
        logits = inner(input_ids=tokens, use_cache=False, **more).logits[0, -1].log_softmax(-1)
        made.append(int(logits.argmax()))
        scores.append(float(logits.max()))
        tokens = torch.cat([tokens, torch.tensor([[made[-1]]])], 1)
    return made, np.array(scores)


@pytest.mark.slow
@torch.no_grad()
def test_answers_are_those_of_transformers(tmp_path: Path) -> None:
    model = make(tmp_path)
    images = [None, *(picture(*size, seed) for seed, size in enumerate(SIZES))]
    llm = engine(tmp_path, max_model_len=64)
    try:
        params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, logprobs=0)
        text = "<grounding> what is it"
        prompts = [{"prompt": text, **({"multi_modal_data": {"image": i}} if i else {})} for i in images]
        for _ in range(2):
            outs = llm.generate(prompts, params, use_tqdm=False)
            for image, out in zip(images, outs, strict=True):
                ids = list(out.prompt_token_ids)
                if image is not None:
                    shown = [IDS["<s>"], IDS["<image>"], *[IDS["<pad>"]] * QUERIES, IDS["</image>"]]
                    assert ids[: len(shown)] == shown
                    assert ids[len(shown) + 1 :] == list(outs[0].prompt_token_ids)
                tokens, scores = greedy(model, ids, image)
                assert list(out.outputs[0].token_ids) == tokens
                mine = [each[t].logprob for each, t in zip(out.outputs[0].logprobs, tokens, strict=True)]
                np.testing.assert_allclose(mine, scores, atol=1e-4)
        # Tokens repeat, as the input matrix is the output matrix. Their probabilities depend on the image.
        first = [out.outputs[0].logprobs[1][out.outputs[0].token_ids[1]].logprob for out in outs[1:]]
        assert np.ptp(first) > 0.01, first
    finally:
        llm.shutdown()


@pytest.mark.slow
@torch.no_grad()
def test_the_text_part_alone_reads_no_image(tmp_path: Path) -> None:
    model = make(tmp_path)
    llm = engine(tmp_path, max_model_len=64, language_model_only=True)
    try:
        out = llm.generate("hello", SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True), use_tqdm=False)[0]
        assert list(out.outputs[0].token_ids) == greedy(model, list(out.prompt_token_ids), None)[0]
    finally:
        llm.shutdown()


def test_a_prompt_begins_with_the_image(tmp_path: Path) -> None:
    make(tmp_path)
    ours: Any = processor(read_config(tmp_path), tmp_path)
    assert ours.complete("<s>what<image> is") == "<s><image> what is"
    assert ours.text((1, 1), "x") == "<image>xxxxx</image>"


def test_absent_keys_have_the_defaults_of_transformers(tmp_path: Path) -> None:
    whole = transformers.Kosmos2Config()
    whole.architectures = ["Kosmos2ForConditionalGeneration"]
    whole.save_pretrained(tmp_path)
    settings = {"size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    said = json.loads((tmp_path / "config.json").read_text())
    least = {
        "architectures": whole.architectures, "model_type": "kosmos-2", "text_config": {"model_type": "kosmos_2_text_model"},
        "vision_config": {},
    }  # fmt: skip
    found = []
    for config in (said, least):
        (tmp_path / "config.json").write_text(json.dumps(config))
        read = read_config(tmp_path)
        found.append((registry.family(read)(read), processor(read, tmp_path)))
    assert found[0] == found[1]
