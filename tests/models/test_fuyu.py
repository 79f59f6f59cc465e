"""Fuyu through the whole engine, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.image_utils import SizeDict

pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

import seeing
from safetensors.torch import load_file, save_file
from test_images import engine, picture, seen
from zoo import SMALL, spread

from thalweg import SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.media.processors import processor
from thalweg.models import registry

PATCH, NEW, MOST = 7, 8, {"height": 35, "width": 49}
EXTRA = ("|SPEAKER|", "|NEWLINE|", "<s>", "<0x04>")
IDS = {name: 256 + len(seeing.NAMES) + i for i, name in enumerate(EXTRA)}
SIZES = ((40, 30), (100, 30), (20, 90), (49, 35), (14, 7), (1, 3))


def make(path: Path) -> Any:
    text = {**SMALL, "vocab_size": 300, "hidden_size": 64, "model_type": "persimmon", "max_position_embeddings": 256}
    text = {key: value for key, value in text.items() if key not in ("num_key_value_heads", "head_dim")}
    config = transformers.FuyuConfig(text_config=text, patch_size=PATCH, image_token_id=IDS["|SPEAKER|"])
    model = transformers.FuyuForCausalLM._from_config(config, attn_implementation="eager").float().eval()
    spread(model, 5)
    model.generation_config.eos_token_id = None
    model.save_pretrained(path)
    reader().save_pretrained(path)
    seeing.write_tokenizer(path, "|SPEAKER|", EXTRA)
    return model


def publish(path: Path) -> None:
    """As the authors publish it: the settings of the text part among those of the whole."""
    file = path / "config.json"
    said = json.loads(file.read_text())
    text = said.pop("text_config")
    rope = text.pop("rope_parameters")
    kept = {key: value for key, value in text.items() if key not in ("model_type", "architectures")}
    file.write_text(json.dumps({**kept, **said, "partial_rotary_factor": 0.5, "rope_theta": rope["rope_theta"]}))
    (file,) = path.glob("*.safetensors")
    made = {name.replace("model.language_model.", "language_model.model."): t for name, t in load_file(file).items()}
    made = {name.replace("model.vision_embed", "vision_embed"): t for name, t in made.items()}
    save_file({f"language_model.{name}" if name.startswith("lm_head.") else name: t for name, t in made.items()}, file)


def reader() -> Any:
    return transformers.FuyuImageProcessorPil(size=MOST, patch_size={"height": PATCH, "width": PATCH})


def patches(image: Any) -> tuple[torch.Tensor, int, int]:
    """(patches, rows, columns) as `FuyuProcessor` makes them."""
    made = reader()(images=[image], return_tensors="np")
    edges = [-(-int(made[f"image_unpadded_{edge}s"][0][0]) // PATCH) for edge in ("height", "width")]
    whole = np.asarray(made["images"][0][0])[:, : edges[0] * PATCH, : edges[1] * PATCH]
    found = reader().patchify_image(whole, SizeDict(height=PATCH, width=PATCH))
    return torch.from_numpy(np.asarray(found, np.float32)), *edges


@pytest.mark.slow
@pytest.mark.parametrize("published", [False, True])
def test_answers_are_those_of_transformers(published: bool, tmp_path: Path) -> None:
    model = make(tmp_path)
    if published:
        publish(tmp_path)
    images = [None, *(picture(*size, seed) for seed, size in enumerate(SIZES))]
    llm = engine(tmp_path, max_model_len=128)
    try:
        params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, logprobs=0)
        prompts = [{"prompt": "what is it", **({"multi_modal_data": {"image": i}} if i else {})} for i in images]
        outs = llm.generate(prompts, params, use_tqdm=False)
        for image, out in zip(images, outs, strict=True):
            ids, more = list(out.prompt_token_ids), {}
            if image is not None:
                pixels, rows, columns = patches(image)
                row = [IDS["|SPEAKER|"]] * columns + [IDS["|NEWLINE|"]]
                assert ids == [*(row * rows), IDS["<s>"], *outs[0].prompt_token_ids, IDS["<0x04>"]]
                more = {"pixel_values": pixels[None]}
            tokens, scores = seeing.generate_scored(
                model, NEW, len(ids), input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), **more
            )
            assert list(out.outputs[0].token_ids) == tokens
            mine = [each[t].logprob for each, t in zip(out.outputs[0].logprobs, tokens, strict=True)]
            np.testing.assert_allclose(mine, scores, atol=1e-4)
        assert len({tuple(out.outputs[0].token_ids) for out in outs}) > 1
    finally:
        llm.shutdown()


def test_patches_are_those_of_transformers(tmp_path: Path) -> None:
    make(tmp_path)
    ours: Any = processor(read_config(tmp_path), tmp_path)
    for seed, (width, height) in enumerate((*SIZES, (500, 300), (36, 36))):
        image = picture(width, height, seed)
        views, size = seen(image, ours)
        pixels, rows, columns = patches(image)
        assert ours.count(size) == rows * columns == len(pixels)
        np.testing.assert_allclose(ours.preprocess(views, size).value, pixels, atol=3e-6)
    assert ours.complete("<s>what|SPEAKER| is it<0x04>") == "|SPEAKER|what is it<0x04>"


@pytest.mark.slow
def test_the_text_part_alone_reads_no_image(tmp_path: Path) -> None:
    model = make(tmp_path)
    llm = engine(tmp_path, max_model_len=128, language_model_only=True)
    try:
        out = llm.generate("hello", SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True), use_tqdm=False)[0]
        ids = list(out.prompt_token_ids)
        want = seeing.generate_scored(model, NEW, len(ids), input_ids=torch.tensor([ids]))[0]
        assert list(out.outputs[0].token_ids) == want
    finally:
        llm.shutdown()


def test_absent_keys_have_the_defaults_of_transformers(tmp_path: Path) -> None:
    whole = transformers.FuyuConfig()
    whole.architectures = ["FuyuForCausalLM"]
    whole.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{}")
    said = json.loads((tmp_path / "config.json").read_text())
    least = {"architectures": ["FuyuForCausalLM"], "model_type": "fuyu", "text_config": {
        "model_type": "persimmon", "rope_parameters": said["text_config"]["rope_parameters"]}}  # fmt: skip
    found = []
    for config in (said, least):
        (tmp_path / "config.json").write_text(json.dumps(config))
        read = read_config(tmp_path)
        found.append((registry.family(read)(read), processor(read, tmp_path)))
    assert found[0] == found[1]
