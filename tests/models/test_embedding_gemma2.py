"""EmbeddingGemma 2: vectors of texts and images, as of transformers' model and the mean that sentence-transformers takes."""

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
from seeing_parts import GEMMA_4_EDGES, GEMMA_4_VISION
from test_images import picture
from zoo import spread

from thalweg import LLM
from thalweg.checkpoint.config import read_config
from thalweg.errors import UnsupportedModelError
from thalweg.models import registry

TEXT = {
    "vocab_size": 288, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "global_head_dim": 16, "num_global_key_value_heads": 1, "sliding_window": 9,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "hidden_size_per_layer_input": 8, "embedding_dim": 64,
    "max_position_embeddings": 512,
}  # fmt: skip


def make(path: Path, vision: bool) -> Any:
    config = transformers.EmbeddingGemma2Config(
        text_config=TEXT,
        vision_config={**GEMMA_4_VISION, "model_type": "gemma4_vision"} if vision else None,
        audio_config=None,
        image_token_id=seeing.IDS["<|image|>"],
        **GEMMA_4_EDGES,
    )
    config._attn_implementation = "eager"
    model = transformers.EmbeddingGemma2Model(config).eval()
    spread(model, 7)
    model.save_pretrained(path)
    seeing.write_tokenizer(path, "<|image|>")
    if vision:
        READS.save_pretrained(path)
    return model


READS = transformers.Gemma4ImageProcessorPil(patch_size=4, max_soft_tokens=70, pooling_kernel_size=2)


@pytest.mark.parametrize("vision", [pytest.param(True, marks=pytest.mark.slow), False])
@torch.inference_mode()
def test_vectors_are_those_of_transformers(vision: bool, tmp_path: Path) -> None:
    """Of texts within a window and beyond it, and of an image."""
    model = make(tmp_path, vision)
    llm = LLM(str(tmp_path), device="cpu", dtype="float32", max_model_len=256, use_tqdm_on_load=False)
    image = picture(60, 40)
    try:
        prompts: list[Any] = ["up the river and down again, past the thalweg", "s"]
        prompts += [{"prompt": "<|image|>see", "multi_modal_data": {"image": image}}] if vision else []
        for out, images in zip(llm.embed(prompts, use_tqdm=False), ([], [], [image]), strict=False):
            ids = list(out.prompt_token_ids)
            given: dict[str, Any] = {"input_ids": torch.tensor([ids])}
            if images:
                made = READS(images=images, return_tensors="pt")
                given |= {"pixel_values": made["pixel_values"], "image_position_ids": made["image_position_ids"]}
            mean = model(**given).last_hidden_state[0].mean(0)
            want = torch.nn.functional.normalize(mean, dim=0).numpy()
            np.testing.assert_allclose(out.outputs.embedding, want, atol=3e-5)
            assert len(want) == 64
    finally:
        llm.shutdown()


def test_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    """The sizes of heads, the types of layers and the like, which a file may leave out."""
    sizes = {"num_hidden_layers": 24, "hidden_size": 512, "num_attention_heads": 4, "vocab_size": 262_144}
    sizes["max_position_embeddings"] = 262_144
    said = {"architectures": ["EmbeddingGemma2Model"], "model_type": "embedding_gemma2", "vision_config": None}
    said["text_config"] = {"model_type": "embedding_gemma2_text", **sizes}
    (tmp_path / "config.json").write_text(json.dumps(said))
    config = read_config(tmp_path)
    short = registry.family(config)(config)
    transformers.EmbeddingGemma2Config(vision_config=None, audio_config=None).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(
        json.dumps(json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["EmbeddingGemma2Model"]})
    )
    config = read_config(tmp_path)
    whole = registry.family(config)(config)
    assert [m for _, m in short.mixers] == [m for _, m in whole.mixers]
    assert (short.layers, short.pooling, short.inputs) == (whole.layers, whole.pooling, whole.inputs)


def test_another_pooling_is_refused(tmp_path: Path) -> None:
    make(tmp_path, vision=False)
    config = {**read_config(tmp_path), "pooling": {"mode": "cls"}}
    with pytest.raises(UnsupportedModelError, match="pooling: this family was trained on mean"):
        registry.family(config)(config)
