"""CLIP and SigLIP: vectors of texts and images in one space, as transformers computes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

from test_images import picture
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from zoo import spread

from thalweg import LLM
from thalweg.checkpoint.config import read_config
from thalweg.errors import RequestError
from thalweg.models import registry

NAMES = ("<|startoftext|>", "<|endoftext|>", "<pad>")
START, END, PAD = range(256, 259)
TEXT = {
    "vocab_size": 259, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 24, "bos_token_id": START, "eos_token_id": END, "pad_token_id": PAD,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 7,
}  # fmt: skip
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "clip": (
        transformers.CLIPConfig(
            text_config={**TEXT, "projection_dim": 32}, vision_config={**VISION, "hidden_size": 48}, projection_dim=32
        ),
        transformers.CLIPImageProcessorPil, {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}},
    ),
    "siglip": (
        transformers.SiglipConfig(text_config={**TEXT, "projection_size": 32}, vision_config=VISION),
        transformers.SiglipImageProcessorPil, {"size": {"height": 28, "width": 28}},
    ),
}  # fmt: skip


def write_tokenizer(kind: str, path: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tok.add_special_tokens(list(NAMES))
    if kind == "clip":
        ends = [(NAMES[0], START), (NAMES[1], END)]
        tok.post_processor = processors.TemplateProcessing(single=f"{NAMES[0]} $A {NAMES[1]}", special_tokens=ends)
    tok.save(str(path / "tokenizer.json"))
    said = f'{{"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "{NAMES[2]}"}}'
    (path / "tokenizer_config.json").write_text(said)


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any, LLM]]:
    """The model of transformers, its image processor, and the engine."""
    path = tmp_path_factory.mktemp(request.param)
    config, processor, said = KINDS[request.param]
    model = transformers.AutoModel.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    spread(model, 3)
    model.save_pretrained(path)
    reads = processor(**said)
    reads.save_pretrained(path)
    if request.param == "clip":  # sizes are numbers, as in the first published files
        file = path / "preprocessor_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "size": 28, "crop_size": 28}))
    write_tokenizer(request.param, path)
    llm = LLM(str(path), device="cpu", dtype="float32", use_tqdm_on_load=False)
    yield model, reads, llm
    llm.shutdown()


def unit(x: Any) -> np.ndarray:
    x = getattr(x, "pooler_output", x)[0].numpy()
    made: np.ndarray = x / np.linalg.norm(x)
    return made


@torch.inference_mode()
@pytest.mark.slow
def test_texts_and_images_have_the_vectors_of_transformers(made: tuple[Any, Any, LLM]) -> None:
    """In one batch, where images of several sizes share a step of their encoder."""
    model, reads, llm = made
    images = [picture(60, 40), picture(29, 28, 1), picture(33, 50, 2)]
    prompts = [*({"prompt": "", "multi_modal_data": {"image": image}} for image in images), "up the river", "!", "a"]
    outs = llm.embed(prompts, use_tqdm=False)
    for image, out in zip(images, outs, strict=False):
        want = model.get_image_features(torch.from_numpy(reads(images=image, return_tensors="np")["pixel_values"]))
        np.testing.assert_allclose(out.outputs.embedding, unit(want), atol=1e-5)
    for text, out in zip(prompts[3:], outs[3:], strict=True):
        ids = [START, *llm.get_tokenizer().encode(str(text), False), END]
        if type(model).__name__ == "SiglipModel":
            ids = ids[1:-1] + [PAD] * (26 - len(ids))
        assert list(out.prompt_token_ids) == ids
        np.testing.assert_allclose(out.outputs.embedding, unit(model.get_text_features(torch.tensor([ids]))), atol=1e-5)
    shown = {"content": [{"type": "image_pil", "image_pil": images[0]}]}
    (scored,) = llm.score("a", shown, use_tqdm=False)
    assert scored.outputs.score == pytest.approx(float(np.dot(outs[0].outputs.embedding, outs[5].outputs.embedding)), abs=1e-6)


def test_a_prompt_is_a_text_or_an_image(made: tuple[Any, Any, LLM]) -> None:
    llm, image = made[2], picture(28, 28)
    for fields in (
        {"prompt": "a", "multi_modal_data": {"image": image}},
        {"prompt": "", "multi_modal_data": {"image": [image] * 2}},
    ):
        with pytest.raises(RequestError, match="either a text or one image"):
            llm.embed(fields, use_tqdm=False)
    with pytest.raises(RequestError, match="one vector"):
        llm.encode({"prompt": "", "multi_modal_data": {"image": image}}, pooling_task="token_embed", use_tqdm=False)
    with pytest.raises(RequestError, match="24"):
        llm.embed("a" * 30, use_tqdm=False)


@pytest.mark.parametrize(("kind", "layers", "hidden"), [("clip", 12, 512), ("siglip", 12, 768)])
def test_published_configurations_leave_sizes_out(kind: str, layers: int, hidden: int, tmp_path: Path) -> None:
    name = {"clip": "CLIPModel", "siglip": "SiglipModel"}[kind]
    parts = {f"{part}_config": {"model_type": f"{kind}_{part}_model"} for part in ("text", "vision")}
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name], "model_type": kind, **parts}))
    config = read_config(tmp_path)
    spec = registry.family(config)(config)
    assert (len(spec.layers), spec.hidden, spec.result) == (layers, hidden, hidden)
    assert spec.vision is not None
    assert (len(spec.vision.layers), spec.vision.hidden) == (12, 768)
