"""Mllama (Llama 3.2 Vision) through the whole engine, against transformers.

Transformers lets tokens before an image attend to all of it. The authors' code
(llama-models, `CrossAttention.forward`) masks the output of these rows, and so do the hooks here."""

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
from test_images import GREEDY, asks, engine, picture, seen
from transformers.models.mllama import processing_mllama as theirs
from zoo import SMALL, spread

from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, RequestError
from thalweg.media.processors import processor
from thalweg.models import registry

TOKEN = "<|picture|>"
VOCAB = 256 + len(seeing.NAMES)
SIDE, PATCH, TILES = 28, 7, 4
SIZES = ((60, 40), (20, 28), (90, 30), (25, 110), (200, 190))
NEW = 8


def make(path: Path) -> transformers.MllamaForConditionalGeneration:
    text = {
        **SMALL, "vocab_size": VOCAB, "num_hidden_layers": 5, "cross_attention_layers": [1, 3], "max_position_embeddings": 512,
        "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": seeing.IDS["<|im_end|>"],
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    }  # fmt: skip
    eye = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_global_layers": 2, "attention_heads": 2,
        "image_size": SIDE, "patch_size": PATCH, "vision_output_dim": 96, "intermediate_layers_indices": [0, 2],
        "max_num_tiles": TILES,
    }  # fmt: skip
    config = transformers.MllamaConfig(text_config=text, vision_config=eye, image_token_index=VOCAB)
    model = transformers.MllamaForConditionalGeneration._from_config(config, attn_implementation="eager").float().eval()
    spread(model, 3)
    model.generation_config.eos_token_id = None
    model.save_pretrained(path)
    reader().save_pretrained(path)
    seeing.write_tokenizer(path, TOKEN, (TOKEN,))
    for layer in (model.model.language_model.layers[i] for i in (1, 3)):
        layer.register_forward_pre_hook(_note_mask, with_kwargs=True)
        layer.cross_attn.register_forward_hook(lambda attention, _, out: (out[0] * attention.shown, out[1]))
    return model


def _note_mask(layer: Any, args: Any, kwargs: dict[str, Any]) -> None:
    shown = kwargs.get("full_text_row_masked_out_mask")
    layer.cross_attn.shown = 1 if shown is None else shown[:, 0]


def reader() -> Any:
    return transformers.MllamaImageProcessorPil(size={"height": SIDE, "width": SIDE}, max_image_tiles=TILES)


def given(ids: list[int], image: Any) -> dict[str, torch.Tensor]:
    out = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    if image is None:
        return out
    made = reader()(images=[image], return_tensors="pt")
    tiles = made.pop("num_tiles")
    spans = [theirs.get_cross_attention_token_mask(ids, VOCAB)]
    mask = theirs.convert_sparse_cross_attention_mask_to_dense(spans, tiles, TILES, len(ids))
    return out | dict(made) | {"cross_attention_mask": torch.from_numpy(mask)}


@torch.no_grad()
def expect(model: Any, ids: list[int], image: Any) -> tuple[list[int], np.ndarray]:
    """Greedy tokens, and log probabilities of the prompt's tokens from the second."""
    out = model.generate(**given(ids, image), max_new_tokens=NEW, do_sample=False)
    logits = model(**given(ids, image)).logits[0, :-1].log_softmax(-1)
    named = torch.tensor([min(i, VOCAB - 1) for i in ids[1:]])
    return out[0, len(ids) :].tolist(), logits.gather(1, named[:, None])[:, 0].numpy()


@pytest.mark.slow
def test_answers_are_those_of_transformers(tmp_path: Path) -> None:
    """Prompts with an image and without one, in one batch of chunks, preempted and again from the prefix cache."""
    model = make(tmp_path)
    images = [None, *(picture(*size, seed) for seed, size in enumerate(SIZES))]
    chats = [asks("hello there, what is it?")] + [asks("look: ", image, " what?") for image in images[1:]]
    params = GREEDY.__class__(temperature=0, max_tokens=NEW, ignore_eos=True, prompt_logprobs=0)
    llm = engine(tmp_path, num_gpu_blocks_override=9, max_model_len=128)
    try:
        outs = llm.chat(chats, GREEDY, use_tqdm=False)
        for image, out in zip(images, outs, strict=True):
            ids = list(out.prompt_token_ids)
            assert ids.count(VOCAB) == (image is not None)
            assert list(out.outputs[0].token_ids) == expect(model, ids, image)[0]
        for image, chat, first in zip(images, chats, outs, strict=True):
            scored = llm.chat(chat, params, use_tqdm=False)[0]
            assert scored.outputs[0].token_ids == first.outputs[0].token_ids
            named = [min(i, VOCAB - 1) for i in scored.prompt_token_ids[1:]]
            mine = [each[token].logprob for each, token in zip(scored.prompt_logprobs[1:], named, strict=True)]
            np.testing.assert_allclose(mine, expect(model, list(scored.prompt_token_ids), image)[1], atol=1e-4)
        assert llm.stats().preemptions > 0
        before = llm.stats().prefix_hits
        again = llm.chat(chats, GREEDY, use_tqdm=False)
        assert [o.outputs[0].token_ids for o in again] == [o.outputs[0].token_ids for o in outs]
        assert llm.stats().prefix_hits > before
        with pytest.raises(RequestError, match="2 images; this model reads one in a prompt"):
            llm.chat(asks(images[1], images[2]), GREEDY, use_tqdm=False)
    finally:
        llm.shutdown()


def test_text_only_skips_cross_attention(tmp_path: Path) -> None:
    model = make(tmp_path)
    llm = engine(tmp_path, language_model_only=True)
    try:
        out = llm.chat(asks("hello"), GREEDY, use_tqdm=False)[0]
        assert list(out.outputs[0].token_ids) == expect(model, list(out.prompt_token_ids), None)[0]
    finally:
        llm.shutdown()


def test_tiles_and_their_arrangement_are_those_of_transformers(tmp_path: Path) -> None:
    make(tmp_path)
    ours = processor(read_config(tmp_path), tmp_path)
    assert ours is not None
    for seed, (width, height) in enumerate((*SIZES, (500, 300), (7, 40), (1, 1), (50, 1), (1, 40), (56, 28))):
        image = picture(width, height, seed)
        views, size = seen(image, ours)
        made, want = ours.source_array(views, size, 9), reader()(images=[image], return_tensors="np")
        tiles = want["num_tiles"][0][0]
        assert made[0, :3].tolist() == [tiles, want["aspect_ratio_ids"][0, 0], 9]
        np.testing.assert_allclose(made[1:], seeing.cut_patches(want["pixel_values"][0, 0, :tiles], PATCH), atol=2e-6)


def test_an_image_token_within_the_vocabulary_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    file = tmp_path / "config.json"
    said = json.loads(file.read_text())
    file.write_text(json.dumps({**said, "image_token_index": 5}))
    config = read_config(tmp_path)
    with pytest.raises(CheckpointError, match=f"image_token_index: must be {said['text_config']['vocab_size']}"):
        registry.family(config)(config)
