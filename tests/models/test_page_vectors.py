"""ColQwen and ColPali: a vector per token of texts and images, as of the backbone of transformers and a projection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

import seeing
from seeing_parts import IDEFICS, SPLIT
from test_images import picture
from zoo import spread

from thalweg import LLM
from thalweg.engine.client.pooling_outputs import maxsim

KINDS = ("qwen2-vl", "qwen3-vl", "qwen3.5", "paligemma")


def make(name: str, path: Path) -> tuple[Any, torch.nn.Linear]:
    """The backbone and the projection. ColQwen3 and 3.5 are written as their authors do, without an inner configuration."""
    model = seeing.make(name, path)
    torch.manual_seed(1)
    (file,) = path.glob("*.safetensors")
    kinds: dict[str, tuple[Any, Any]] = {
        "qwen2-vl": (transformers.ColQwen2Config, transformers.ColQwen2ForRetrieval),
        "paligemma": (transformers.ColPaliConfig, transformers.ColPaliForRetrieval),
    }
    if name in kinds:
        kind, holds = kinds[name]
        whole = holds(kind(vlm_config=model.config, embedding_dim=16))
        whole.vlm.load_state_dict(model.model.state_dict())
        file.unlink()
        whole.save_pretrained(path)
        return model, whole.embedding_proj_layer
    projection = torch.nn.Linear(48, 16)
    held = {f"vlm.{k}": v for k, v in load_file(file).items() if not k.startswith("lm_head.")}
    save_file({**held, **{f"embedding_proj_layer.{k}": v.detach() for k, v in projection.named_parameters()}}, file)
    said = json.loads((path / "config.json").read_text())
    named = {"qwen3-vl": ("ColQwen3", "colqwen3"), "qwen3.5": ("ColQwen3_5", "colqwen3_5")}[name]
    said |= {"architectures": [named[0]], "model_type": named[1], "embed_dim": 16}
    (path / "config.json").write_text(json.dumps(said))
    return model, projection


@pytest.mark.sampled(1, 1)
@pytest.mark.parametrize("name", KINDS)
@torch.inference_mode()
def test_every_token_has_the_vector_of_transformers(name: str, tmp_path: Path) -> None:
    model, projection = make(name, tmp_path)
    llm = LLM(str(tmp_path), device="cpu", dtype="float32", max_model_len=512, use_tqdm_on_load=False)
    try:
        image = picture(60, 40)
        marker = seeing.FAMILIES[name].marker
        prompts = [{"prompt": f"{marker}see", "multi_modal_data": {"image": image}}, "Query: up the river"]
        outs = llm.encode(prompts, use_tqdm=False)
        for out, images in zip(outs, ([image], []), strict=True):
            given = seeing.given(name, list(out.prompt_token_ids), images)
            if name == "paligemma":  # its processor gives every prompt such types
                given["token_type_ids"] = torch.zeros_like(given["input_ids"])
            states = model.model(**given).last_hidden_state[0]
            want = torch.nn.functional.normalize(projection(states), dim=1).numpy()
            np.testing.assert_allclose(out.outputs.data, want, atol=3e-5)
        shown = {"content": [{"type": "image_pil", "image_pil": image}]}
        (scored,) = llm.score("up", shown, use_tqdm=False)
        chat = llm.preprocess_chat([{"role": "user", "content": shown["content"]}], add_generation_prompt=False)
        query = llm.preprocess_chat([{"role": "user", "content": "up"}], add_generation_prompt=False)
        a, b = llm.encode([*query, *chat], use_tqdm=False)
        assert scored.outputs.score == pytest.approx(maxsim(a.outputs.data, b.outputs.data), abs=1e-5)
    finally:
        llm.shutdown()


@pytest.mark.slow
@torch.inference_mode()
def test_colmodernvbert_has_the_vectors_of_transformers(tmp_path: Path) -> None:
    """A text encoder: a page in tiles, and a query."""
    text = {
        "model_type": "modernbert", "vocab_size": 288, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 4,
        "num_attention_heads": 4, "local_attention": 10, "pad_token_id": 0, "max_position_embeddings": 512,
        "eos_token_id": 257, "bos_token_id": 256, "cls_token_id": 256, "sep_token_id": 257,
    }  # fmt: skip
    vision = IDEFICS | {"model_type": "siglip_vision_model"}
    config = transformers.ModernVBertConfig(
        text_config=text, vision_config=vision, pixel_shuffle_factor=2, image_token_id=seeing.IDS["<image>"]
    )
    whole = transformers.ColModernVBertConfig(vlm_config=config, embedding_dim=16)
    whole._attn_implementation = "eager"
    model = transformers.ColModernVBertForRetrieval(whole).eval()
    spread(model, 7)
    model.save_pretrained(tmp_path)
    reads = transformers.Idefics3ImageProcessorPil(**SPLIT)
    reads.save_pretrained(tmp_path)
    seeing.write_tokenizer(tmp_path, "<image>")
    image = picture(60, 40)
    llm = LLM(str(tmp_path), device="cpu", dtype="float32", max_model_len=512, use_tqdm_on_load=False)
    try:
        outs = llm.encode([{"prompt": "<image>see", "multi_modal_data": {"image": image}}, "up the river"], use_tqdm=False)
        for out, images in zip(outs, ([image], []), strict=True):
            ids = list(out.prompt_token_ids)
            given = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.int64)}
            if images:
                made = reads(images=[images], return_tensors="pt")
                given |= {"pixel_values": made["pixel_values"], "pixel_attention_mask": made["pixel_attention_mask"]}
                assert ids.count(seeing.IDS["<image>"]) == 4 * made["pixel_values"].shape[1]
            np.testing.assert_allclose(out.outputs.data, model(**given).embeddings[0].numpy(), atol=3e-5)
    finally:
        llm.shutdown()
