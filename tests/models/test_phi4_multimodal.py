"""Phi-4-multimodal through the whole engine, against transformers. Its processor runs with Pillow instead of torchvision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

import pillow_processors
import seeing
from safetensors.torch import load_file, save_file
from test_images import GREEDY, asks, engine, picture, seen
from zoo import SMALL, spread

from thalweg.checkpoint.config import read_config
from thalweg.media.processors import processor

TOKEN, SIDE, PATCH, NEW = "<|image|>", 28, 7, 8
SIZES = ((60, 40), (28, 28), (90, 30), (25, 110), (50, 61))
THEIRS = (
    ("img_projection_up", "img_projection.0"), ("img_projection_down", "img_projection.2"),
    ("global_img_feature_extensor", "glb_GN"), ("sub_img_feature_extensor", "sub_GN"),
)  # fmt: skip
AUDIO = {
    "hidden_size": 32, "intermediate_size": 48, "num_blocks": 1, "num_attention_heads": 2, "ext_pw_out_channel": 32,
    "depthwise_separable_out_channel": 32, "nemo_conv_channels": 16, "input_size": 16, "bias_max_distance": 10,
}  # fmt: skip


def make(path: Path) -> Any:
    eye = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": SIDE,
        "crop_size": SIDE, "patch_size": PATCH, "image_token_id": seeing.IDS[TOKEN],
    }  # fmt: skip
    text = {
        **SMALL, "vocab_size": 288, "max_position_embeddings": 512, "original_max_position_embeddings": 512, "pad_token_id": 0,
        "bos_token_id": 0, "eos_token_id": seeing.IDS["<|im_end|>"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    }  # fmt: skip
    ear = AUDIO | {"audio_token_id": seeing.IDS["<|video_pad|>"]}
    config = transformers.Phi4MultimodalConfig(**text, vision_config=eye, audio_config=ear)
    model = transformers.Phi4MultimodalForCausalLM._from_config(config, attn_implementation="eager").float().eval()
    spread(model, 5)
    model.generation_config.eos_token_id = None
    model.save_pretrained(path)
    reader().save_pretrained(path)
    seeing.write_tokenizer(path, TOKEN)
    return model


def publish(path: Path) -> None:
    """As the authors publish it, with adapters among the matrices."""
    file = path / "config.json"
    said = json.loads(file.read_text())
    layer = {"hd_transform_order": "sub_glb", "use_hd_transform": True, "with_learnable_separator": True}
    eye = said.pop("vision_config") | {"embedding_cls": "image_audio", "image_embd_layer": layer}
    del said["audio_config"]
    file.write_text(json.dumps({**said, "architectures": ["Phi4MMForCausalLM"], "model_type": "phi4mm", "embd_layer": eye}))
    (file,) = path.glob("*.safetensors")
    made = dict[str, torch.Tensor]()
    for name, tensor in load_file(file).items():
        for ours, theirs in THEIRS:
            name = name.replace(ours, theirs)
        if name.startswith("model.layers.") and "proj" in name:
            stem = name.removesuffix(".weight")
            name = f"{stem}.base_layer.weight"
            made |= {f"{stem}.lora_{part}.{kind}.weight": torch.ones(4, 4) for part in "AB" for kind in ("vision", "speech")}
        made[name] = tensor
    save_file(made, file)


def reader() -> Any:
    made = pillow_processors.processor("phi4_multimodal", "Phi4MultimodalImageProcessor")
    return made(size={"height": SIDE, "width": SIDE}, patch_size=PATCH, dynamic_hd=6)


def given(ids: list[int], images: list[Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    if images:
        made = reader()(images=images, return_tensors="pt")
        out |= {k: made[k] for k in ("image_pixel_values", "image_sizes", "image_attention_mask")}
    return out


@torch.no_grad()
def expect(model: Any, ids: list[int], images: list[Any]) -> tuple[list[int], np.ndarray]:
    """Greedy tokens, and log probabilities of the prompt's tokens from the second."""
    out = model.generate(**given(ids, images), max_new_tokens=NEW, do_sample=False)
    logits = model(**given(ids, images)).logits[0, :-1].log_softmax(-1)
    return out[0, len(ids) :].tolist(), logits.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()


@pytest.mark.slow
@pytest.mark.parametrize("published", [False, True])
def test_answers_are_those_of_transformers(published: bool, tmp_path: Path) -> None:
    """Chunks cut images. Some rows of merged patches are half filled."""
    model = make(tmp_path)
    if published:
        publish(tmp_path)
    a, b, c, d, e = (picture(*size, seed) for seed, size in enumerate(SIZES))
    chats = [
        ([], asks("hello there")), ([a], asks(a, "what?")), ([b, c], asks("see ", b, " and ", c)), ([d], asks("so: ", d)),
        ([e], asks(e, "?")),
    ]  # fmt: skip
    params = GREEDY.__class__(temperature=0, max_tokens=NEW, ignore_eos=True, prompt_logprobs=0)
    llm = engine(tmp_path)
    try:
        outs = llm.chat([chat for _, chat in chats], GREEDY, use_tqdm=False)
        for (images, chat), out in zip(chats, outs, strict=True):
            ids = list(out.prompt_token_ids)
            tokens, scores = expect(model, ids, images)
            assert list(out.outputs[0].token_ids) == tokens
            scored = llm.chat(chat, params, use_tqdm=False)[0]
            mine = [each[token].logprob for each, token in zip(scored.prompt_logprobs[1:], ids[1:], strict=True)]
            np.testing.assert_allclose(mine, scores, atol=1e-4)
    finally:
        llm.shutdown()


def test_pixels_masks_and_counts_are_those_of_transformers(tmp_path: Path) -> None:
    make(tmp_path)
    ours = processor(read_config(tmp_path), tmp_path)
    assert ours is not None
    for seed, (width, height) in enumerate((*SIZES, (300, 200), (28, 29), (11, 90), (90, 31))):
        image = picture(width, height, seed)
        views, size = seen(image, ours)
        made, want = ours.preprocess(views, size), reader()(images=[image], return_tensors="np")
        pixels, mask = want["image_pixel_values"][0], want["image_attention_mask"][0]
        np.testing.assert_allclose(made.value, seeing.cut_patches(pixels, PATCH), atol=3e-6)
        np.testing.assert_array_equal(made.share[:, 0], mask.reshape(-1))
        # It counts 16 x 16 vectors of the whole image, and 16 line ends.
        assert want["num_img_tokens"][0] - 16 * 17 == ours.count(size) - 2 * 3
        assert len(made.mix) == ours.count(size)


def test_text_only_loads_no_encoder(tmp_path: Path) -> None:
    model = make(tmp_path)
    llm = engine(tmp_path, language_model_only=True)
    try:
        out = llm.chat(asks("hello"), GREEDY, use_tqdm=False)[0]
        assert list(out.outputs[0].token_ids) == expect(model, list(out.prompt_token_ids), [])[0]
    finally:
        llm.shutdown()
