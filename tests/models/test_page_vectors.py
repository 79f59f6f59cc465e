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
from test_images import picture

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
