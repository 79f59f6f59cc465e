"""GIT through the whole engine, against transformers."""

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
from test_images import SIZES, asks, engine, picture
from zoo import spread

from thalweg import SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.media.processors import processor
from thalweg.models import registry

NEW, VECTORS = 8, 17
BEGIN, PAD = 256 + len(seeing.NAMES), seeing.IDS["<|endoftext|>"]
PART = "{% if p.type == 'image' %}<image>[CLS]{% else %}{{ p.text }}{% endif %}"
PLAIN = f"{{% for p in messages[0].content %}}{PART}{{% endfor %}}"
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 7,
}  # fmt: skip
TEXT = {
    "vocab_size": BEGIN + 1, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 72,
    "max_position_embeddings": 128, "pad_token_id": PAD, "num_image_with_embedding": 2, "bos_token_id": BEGIN,
}  # fmt: skip


def make(path: Path) -> Any:
    """As published for videos, too: embeddings of their frames are not loaded."""
    config = transformers.GitConfig(vision_config=VISION, **TEXT)
    model = transformers.GitForCausalLM._from_config(config, attn_implementation="eager").float().eval()
    spread(model, 5)
    with torch.no_grad():  # images must matter
        model.git.visual_projection.visual_projection[1].weight.mul_(4)
    model.save_pretrained(path)
    reader().save_pretrained(path)
    seeing.write_tokenizer(path, "<image>[CLS]", ("[CLS]",))
    return model


def reader() -> Any:
    return transformers.CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})


@torch.no_grad()
def greedy(model: Any, ids: list[int], image: Any) -> tuple[list[int], np.ndarray]:
    """ids: without placeholders."""
    tokens, made, scores, more = torch.tensor([ids]), [], [], {}
    if image is not None:
        more["pixel_values"] = reader()(images=[image], return_tensors="pt")["pixel_values"]
    for _ in range(NEW):
        logits = model(input_ids=tokens, use_cache=False, **more).logits[0, -1].log_softmax(-1)
        made.append(int(logits.argmax()))
        scores.append(float(logits.max()))
        tokens = torch.cat([tokens, torch.tensor([[made[-1]]])], 1)
    return made, np.array(scores)


@pytest.mark.slow
def test_captions_are_those_of_transformers(tmp_path: Path) -> None:
    """Captions and answers, beside text alone, and again with known images. Conversations too."""
    model = make(tmp_path)
    images = [None, *(picture(*size, seed) for seed, size in enumerate(SIZES))]
    llm = engine(tmp_path, max_model_len=64)
    try:
        params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, logprobs=0)
        prompts = [
            {"prompt": "what is it"[: 3 * i], "multi_modal_data": {"image": image}} if image else "[CLS]text"
            for i, image in enumerate(images)
        ]
        for _ in range(2):
            outs = llm.generate(prompts, params, use_tqdm=False)
            for image, out in zip(images, outs, strict=True):
                ids = list(out.prompt_token_ids)
                shown = VECTORS if image else 0
                assert ids[: shown + 1] == [PAD] * shown + [BEGIN]
                tokens, scores = greedy(model, ids[shown:], image)
                assert list(out.outputs[0].token_ids) == tokens
                mine = [each[t].logprob for each, t in zip(out.outputs[0].logprobs, tokens, strict=True)]
                np.testing.assert_allclose(mine, scores, atol=1e-4)
        assert len({tuple(out.outputs[0].token_ids) for out in outs}) > 2
        chat = llm.chat(asks(images[1], "a dog"), params, chat_template=PLAIN, use_tqdm=False)[0]
        assert list(chat.outputs[0].token_ids) == greedy(model, list(chat.prompt_token_ids)[VECTORS:], images[1])[0]
    finally:
        llm.shutdown()


@pytest.mark.slow
def test_the_text_part_alone_reads_no_image(tmp_path: Path) -> None:
    model = make(tmp_path)
    llm = engine(tmp_path, max_model_len=64, language_model_only=True)
    try:
        out = llm.generate("[CLS]hello", SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True), use_tqdm=False)[0]
        assert list(out.outputs[0].token_ids) == greedy(model, list(out.prompt_token_ids), None)[0]
    finally:
        llm.shutdown()


def test_a_prompt_begins_with_the_image(tmp_path: Path) -> None:
    make(tmp_path)
    ours: Any = processor(read_config(tmp_path), tmp_path)
    assert ours.complete("[CLS]what<image> is") == "<image>[CLS]what is"
    assert (ours.count((3, 4)), ours.single, ours.together) == (VECTORS, True, True)


@pytest.mark.parametrize("tied", [False, True])
def test_the_bias_of_logits_is_loaded(tied: bool, tmp_path: Path) -> None:
    make(tmp_path)
    config = {**read_config(tmp_path), "tie_word_embeddings": tied}
    spec: Any = registry.family(config)(config)
    assert (spec.head, spec.head_bias, spec.tied, spec.rename("output.bias")) == ("output", True, tied, "output.bias")


def test_absent_keys_have_the_defaults_of_transformers(tmp_path: Path) -> None:
    whole = transformers.GitConfig()
    whole.architectures = ["GitForCausalLM"]
    whole.save_pretrained(tmp_path)
    settings = {"size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    said = json.loads((tmp_path / "config.json").read_text())
    keys = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
            "max_position_embeddings")  # fmt: skip
    least = {
        "architectures": whole.architectures, "model_type": "git", "vision_config": {}, **{key: said[key] for key in keys},
    }  # fmt: skip
    found = []
    for config in (said, least):
        (tmp_path / "config.json").write_text(json.dumps(config))
        read = read_config(tmp_path)
        found.append((registry.family(read)(read), processor(read, tmp_path)))
    assert found[0] == found[1]
