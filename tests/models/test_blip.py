"""BLIP through the whole engine, against transformers."""

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
from test_images import SIZES, asks, engine, picture, seen
from zoo import spread

from thalweg import SamplingParams
from thalweg.checkpoint.config import eos_ids, read_config
from thalweg.errors import RequestError, UnsupportedModelError
from thalweg.media.processors import processor
from thalweg.models import registry

SIDE, PATCH, NEW = 28, 7, 10
BEGIN = 256 + len(seeing.NAMES)
"""As in published files, the tokenizer does not have it."""
EYE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": SIDE,
    "patch_size": PATCH,
}  # fmt: skip
PLAIN = "{% for p in messages[0].content %}{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}"
TEXT = {
    "vocab_size": BEGIN + 2, "hidden_size": 48, "encoder_hidden_size": 32, "intermediate_size": 72, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64, "bos_token_id": BEGIN, "sep_token_id": seeing.IDS["<|im_end|>"],
    "pad_token_id": seeing.IDS["<|endoftext|>"],
}  # fmt: skip


def make(path: Path) -> Any:
    config = transformers.BlipConfig(text_config=TEXT, vision_config=EYE)
    model = transformers.BlipForConditionalGeneration(config).float().eval()
    spread(model, 6)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "crossattention.output.dense.weight" in key:
                p.mul_(3)  # images must matter
    model.save_pretrained(path)
    reader().save_pretrained(path)
    seeing.write_tokenizer(path, "<image>")
    return model


def reader() -> Any:
    return transformers.BlipImageProcessorPil(size={"height": SIDE, "width": SIDE})


@torch.no_grad()
def greedy(model: Any, ids: list[int], image: Any) -> tuple[list[int], np.ndarray]:
    pixels = reader()(images=[image], return_tensors="pt")["pixel_values"]
    tokens, made, scores = torch.tensor([ids]), [], []
    for _ in range(NEW):
        logits = model(pixel_values=pixels, input_ids=tokens).logits[0, -1].log_softmax(-1)
        made.append(int(logits.argmax()))
        scores.append(float(logits.max()))
        tokens = torch.cat([tokens, torch.tensor([[made[-1]]])], 1)
    return made, np.array(scores)


@pytest.mark.slow
def test_captions_are_those_of_transformers(tmp_path: Path) -> None:
    """With beginnings and without, more than there are slots, and again with known ones. Conversations too."""
    model = make(tmp_path)
    images = [picture(*size, seed) for seed, size in enumerate(SIZES)]
    asked = [{"prompt": "a photo of"[: 3 * i], "multi_modal_data": {"image": image}} for i, image in enumerate(images)]
    llm = engine(tmp_path, max_model_len=64, block_size=4)
    try:
        params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, logprobs=0)
        for _ in range(2):
            outs = llm.generate(asked, params, use_tqdm=False)
            for i, (image, out) in enumerate(zip(images, outs, strict=True)):
                ids = list(out.prompt_token_ids)
                assert (ids[0], len(ids)) == (BEGIN, 1 + 3 * i)
                tokens, scores = greedy(model, ids, image)
                assert list(out.outputs[0].token_ids) == tokens
                mine = [each[t].logprob for each, t in zip(out.outputs[0].logprobs, tokens, strict=True)]
                np.testing.assert_allclose(mine, scores, atol=1e-4)
        assert len({tuple(out.outputs[0].token_ids) for out in outs}) > 1
        for text in ("", "what"):
            chat = llm.chat([asks(images[0], *[text] * bool(text))], params, chat_template=PLAIN, use_tqdm=False)[0]
            assert list(chat.prompt_token_ids) == [BEGIN, *llm.get_tokenizer().encode(text)]
            assert list(chat.outputs[0].token_ids) == greedy(model, list(chat.prompt_token_ids), images[0])[0]
        with pytest.raises(RequestError, match="send an item with every prompt"):
            llm.generate("a photo", params, use_tqdm=False)
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
        np.testing.assert_allclose(made[1:], seeing.cut_patches(want, PATCH), atol=2e-6)


def test_absent_keys_have_the_defaults_of_transformers(tmp_path: Path) -> None:
    """And texts end with `sep_token_id`, whatever the end of the configuration is."""
    whole = transformers.BlipConfig()
    whole.architectures = ["BlipForConditionalGeneration"]
    whole.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{}")
    said = json.loads((tmp_path / "config.json").read_text())
    least = {
        "architectures": whole.architectures, "model_type": "blip", "vision_config": {},
        "text_config": {"model_type": "blip_text_model"},
    }  # fmt: skip
    found = []
    for config in (said, least):
        (tmp_path / "config.json").write_text(json.dumps(config))
        read = read_config(tmp_path)
        assert eos_ids(tmp_path, read) == (102,)
        found.append((registry.family(read)(read), processor(read, tmp_path)))
    assert found[0] == found[1]


def test_the_text_part_is_no_model(tmp_path: Path) -> None:
    make(tmp_path)
    config = {**read_config(tmp_path), "language_model_only": True}
    with pytest.raises(UnsupportedModelError, match="requires an image"):
        registry.family(config)(config)
