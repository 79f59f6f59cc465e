"""Molmo 2 against transformers: pixels, windows, placeholders, tokens and log-probabilities of prompts with an image."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import jinja2
import msgspec
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from zoo import spread

pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

import pillow_processors
import seeing
from test_images import SIZES, asks, engine, picture, seen

from thalweg import SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, RequestError, UnsupportedModelError
from thalweg.media import patches
from thalweg.media.processors import processor
from thalweg.models import registry
from thalweg.template.select import complete_templates

MARKS = ("<im_start>", "<im_end>", "<im_patch>", "<im_col>", "<low_res_im_start>", "<|image|>")
VOCAB = 256 + len(seeing.NAMES)
IDS = {name: VOCAB + i for i, name in enumerate(MARKS)}
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
SETTINGS = {"size": {"height": 28, "width": 28}, "max_crops": 4, "overlap_margins": [1, 1], "patch_size": 4}
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 2,
    "head_dim": 16, "image_size": [28, 28], "patch_size": 4,
}  # fmt: skip
ADAPTER = {
    "vision_feature_layer": [2, 0], "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 40, "text_hidden_size": 48,
}  # fmt: skip
TEXT = {
    "hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCAB,
    "additional_vocab_size": 8, "num_hidden_layers": 3, "intermediate_size": 64, "max_position_embeddings": 1024,
    "model_type": "molmo2_text", "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}  # fmt: skip
OLMO = {
    "qk_norm_type": "olmo", "norm_after": True, "rope_scaling_layers": [1], "attention_bias": True,
    "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {"qwen3": {}, "olmo": OLMO}
HOLDS = {"image_use_col_tokens": True, "use_single_crop_col_tokens": False, "use_single_crop_start_token": True}


def theirs() -> Any:
    return pillow_processors.processor("molmo2", "Molmo2ImageProcessor")(**SETTINGS)


def make(kind: str, path: Path) -> Any:
    """The model of transformers, saved with the tensors and the keys of the authors' files."""
    config = transformers.Molmo2Config(
        vision_config=VISION, adapter_config=ADAPTER, text_config={**TEXT, **KINDS[kind]},
        **{key: IDS[name] for key, name in (
            ("image_patch_id", "<im_patch>"), ("image_start_token_id", "<im_start>"), ("image_end_token_id", "<im_end>"),
            ("low_res_image_start_token_id", "<low_res_im_start>"),
        )},
    )  # fmt: skip
    model = transformers.Molmo2ForConditionalGeneration._from_config(config, attn_implementation="eager").float().eval()
    spread(model, 7)
    model.save_pretrained(path)
    file = path / "model.safetensors"
    tensors, at = load_file(file), "model.transformer.wte."
    table = torch.cat([tensors[f"{at}embedding"], tensors[f"{at}new_embedding"]])  # transformers divides it evenly
    tensors |= {f"{at}embedding": table[:VOCAB].clone(), f"{at}new_embedding": table[VOCAB:].clone()}
    save_file(tensors, file)
    said = json.loads((path / "config.json").read_text())
    eye = said.pop("vision_config")
    names = {
        "image_size": "image_default_input_size",
        "patch_size": "image_patch_size",
        "num_position_embeddings": "image_num_pos",
    }
    said["vit_config"] = {names.get(key, key): value for key, value in eye.items()}
    said["adapter_config"]["vit_layers"] = said["adapter_config"].pop("vision_feature_layer")
    (path / "config.json").write_text(json.dumps(said))
    write_rest(path)
    return model


def write_rest(path: Path) -> None:
    seeing.write_tokenizer(path, "<|image|>", MARKS)
    (path / "preprocessor_config.json").write_text(json.dumps(SETTINGS))
    (path / "processor_config.json").write_text(json.dumps(HOLDS))


def given(ids: list[int], images: list[Any], ours: Any = None) -> dict[str, torch.Tensor]:
    """ours: the processor whose pixels the model is given, in place of a few that are rounded otherwise."""
    tokens = torch.tensor([ids])
    shown = torch.isin(tokens, torch.tensor([IDS[name] for name in MARKS[:5]])).int()
    out = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "mm_token_type_ids": shown}
    out |= {key: torch.as_tensor(v) for key, v in theirs()(images=images).items()} if images else {}
    if images:
        pixels = ours.preprocess(*seen(images[0], ours)).value
        out["pixel_values"] = torch.from_numpy(pixels).view_as(out["pixel_values"])
    return out


def read_with_sizes(path: Path) -> Any:
    config = {
        "architectures": ["Molmo2ForConditionalGeneration"], "model_type": "molmo2", "text_config": TEXT, "vit_config": VISION,
        "adapter_config": ADAPTER,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    write_rest(path)
    return processor(read_config(path), path)


def test_pixels_windows_and_placeholders_are_those_of_transformers(tmp_path: Path) -> None:
    """Pixels midway between two shades are rounded to either: torchvision's arithmetic is inexact there."""
    ours, whole = read_with_sizes(tmp_path), transformers.Molmo2Processor.__new__(transformers.Molmo2Processor)
    for key, value in HOLDS.items():
        setattr(whole, key, value)
    for seed, (width, height) in enumerate((*SIZES, (500, 300), (7, 40), (1, 1), (50, 1), (1, 40), (8, 8), (28, 28), (200, 9))):
        image = picture(width, height, seed)
        views, size = seen(image, ours)
        want, made = theirs()(images=[image]), ours.preprocess(views, size)
        off = np.abs(made.value - want["pixel_values"].flatten(0, 1).numpy())
        assert off.max() <= 2 / 255 + 1e-6
        assert (off > 1e-6).mean() <= 0.03
        begins = np.cumsum([0, *made.windows])
        pooled = [sorted(made.keep[a:b]) for a, b in itertools.pairwise(begins)]
        asked = [sorted(i for i in row if i >= 0) for row in want["image_token_pooling"].tolist()]
        assert pooled[: len(asked)] == asked
        assert len(pooled) <= len(asked) + 1
        text = ours.text(size, "<im_patch>")
        assert text == whole.replace_image_token({"image_grids": want["image_grids"]}, 0)
        assert sum(text.count(name) for name in MARKS) == ours.count(size) == len(made.mix)
        patches.batch(made).check()


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_answers_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    model = make(kind, tmp_path)
    a, b, c, _ = (picture(*size, seed) for seed, size in enumerate(SIZES))
    ours = processor(read_config(tmp_path), tmp_path)
    chats = [
        ([a], asks(a, "what?")),
        ([], asks("hello")),
        ([b], asks("see ", b, " and <im_patch> now")),
        ([c], asks(c, "x" * 40)),
    ]
    llm = engine(tmp_path, max_model_len=900, max_num_batched_tokens=400, num_gpu_blocks_override=200)
    try:
        outs = llm.chat([chat for _, chat in chats], GREEDY, use_tqdm=False)
        for (images, _), out in zip(chats, outs, strict=True):
            ids = list(out.prompt_token_ids)
            want = model.generate(**given(ids, images, ours), max_new_tokens=8, do_sample=False)[0, len(ids) :].tolist()
            assert list(out.outputs[0].token_ids) == want
            assert ids[0] == seeing.IDS["<|im_end|>"]
        for images, chat in chats[:3]:
            out = llm.chat(chat, msgspec.structs.replace(GREEDY, prompt_logprobs=0), use_tqdm=False)[0]
            ids = list(out.prompt_token_ids)
            with torch.no_grad():
                logits = model(**given(ids, images, ours)).logits[0, :-1].log_softmax(-1)
            for i, (token, scored) in enumerate(zip(ids[1:], out.prompt_logprobs[1:], strict=True)):
                if token < VOCAB:  # the output matrix has no row for others
                    assert scored[token].logprob == pytest.approx(float(logits[i, token]), abs=1e-3)
        before = llm.stats().prefix_hits
        again = llm.chat(chats[0][1], GREEDY, use_tqdm=False)[0]
        assert list(again.outputs[0].token_ids) == list(outs[0].outputs[0].token_ids)
        assert llm.stats().prefix_hits > before
        with pytest.raises(RequestError, match="2 images; this model reads one in a prompt"):
            llm.chat(asks(a, b), GREEDY, use_tqdm=False)
    finally:
        llm.shutdown()


@pytest.mark.parametrize(("source", "bos", "begins"), [
    ("{{ messages[0].content }}", "<s>", "<s>hello"), ("{{ messages[0].content }}", None, "<|im_end|>hello"),
    ("{{ bos_token }}{{ messages[0].content }}", "<s>", "<s>hello"),
])  # fmt: skip
def test_conversations_begin_with_the_token_of_the_authors_processor(source: str, bos: str | None, begins: str) -> None:
    """`Molmo2Processor` writes it before prompts that lack it. Those of other models stay as their templates write them."""
    named = complete_templates({"default": source}, "Molmo2ForConditionalGeneration")
    said = {"eos_token": "<|im_end|>"} | ({"bos_token": bos} if bos else {})
    assert jinja2.Template(named["default"]).render(messages=[{"content": "hello"}], **said) == begins
    assert complete_templates({"default": source}, "Molmo3") == {"default": source}


@pytest.mark.slow
def test_the_text_part_alone_reads_no_table_of_images(tmp_path: Path) -> None:
    model = make("qwen3", tmp_path)
    llm = engine(tmp_path, language_model_only=True)
    try:
        out = llm.chat(asks("hello"), GREEDY, use_tqdm=False)[0]
        ids = list(out.prompt_token_ids)
        want = model.generate(**given(ids, []), max_new_tokens=8, do_sample=False)[0, len(ids) :].tolist()
        assert list(out.outputs[0].token_ids) == want
    finally:
        llm.shutdown()


@pytest.mark.parametrize(
    ("part", "key", "value", "words"),
    [
        ("adapter_config", "vit_layers", [3], "vit_layers: must be layers of 3"),
        ("text_config", "rope_scaling_layers", "all", "rope_scaling_layers: must be a list"),
        ("vit_config", "num_key_value_heads", 1, "num_key_value_heads"),
    ],
)
def test_odd_settings_are_refused_by_name(part: str, key: str, value: Any, words: str, tmp_path: Path) -> None:
    read_with_sizes(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    said[part] = {**said[part], key: value}
    (tmp_path / "config.json").write_text(json.dumps(said))
    config = read_config(tmp_path)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=words):
        registry.family(config)(config)
