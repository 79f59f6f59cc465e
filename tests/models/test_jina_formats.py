"""Checkpoints in Jina's format under XLM-RoBERTa's names: v3 with an adapter per task, and the second reranker."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from rig import Rig
from safetensors.torch import load_file, save_file
from test_encoders import hidden, pooled
from test_more_encoders import close, texts
from zoo import edit_config, make_classifier, make_encoder

from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError
from thalweg.models import registry

TASKS = ["retrieval.query", "retrieval.passage", "separation", "classification", "text-matching"]
RANK = 2
PUBLISHED = {
    "architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "position_embedding_type": "rotary",
    "rotary_emb_base": 20000.0, "use_flash_attn": False, "lora_adaptations": TASKS, "lora_rank": RANK, "lora_alpha": 1,
    "rope_parameters": None, "rope_theta": None, "pad_token_id": 1, "matryoshka_dimensions": [8, 16],
}  # fmt: skip


def write_tasks(path: Path, merged: Path, task: int) -> None:
    """The file of `path` in the published format, and that of `merged` with the changes of one task in its matrices."""
    plain, g = load_file(path / "model.safetensors"), torch.Generator().manual_seed(4)
    out, whole = {}, dict(plain)
    for name, w in plain.items():
        at = f"roberta.{name.removesuffix('.weight')}"
        if w.dim() < 2 or "norm" in name:
            out[f"roberta.{name}"] = w
            continue
        one, other = w.shape
        table = "embeddings" in name
        shapes = ((one, RANK), (RANK, other)) if table else ((RANK, other), (one, RANK))
        a, b = (torch.randn(len(TASKS), *shape, generator=g) / 3 for shape in shapes)
        out |= {f"{at}.parametrizations.weight.original": w, f"{at}.parametrizations.weight.0.lora_A": a}
        out[f"{at}.parametrizations.weight.0.lora_B"] = b
        whole[name] = w + (a[task] @ b[task] if table else b[task] @ a[task]) / RANK
    save_file(out, path / "model.safetensors", {"format": "pt"})
    save_file(whole, merged / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("task", ["separation", None])
def test_vectors_of_a_task_are_those_of_merged_matrices(task: str | None, tmp_path: Path) -> None:
    path, merged = make_encoder("jina-v3", tmp_path), make_encoder("jina-v3", tmp_path / "merged")
    write_tasks(path, merged, TASKS.index(task or "text-matching"))
    edit_config(path, **PUBLISHED, **({"jina_task": task} if task else {}))
    close(path, want=lambda _, ids: hidden(merged, ids))
    if task:
        close(path, "thalweg.backends.torch_gpu.testing:HostGpuPlatform", lambda _, ids: hidden(merged, ids))


def test_tasks_and_shapes_are_checked(tmp_path: Path) -> None:
    path = make_encoder("jina-v3", tmp_path)
    write_tasks(path, make_encoder("jina-v3", tmp_path / "merged"), 0)
    edit_config(path, **PUBLISHED, jina_task="poems")
    config = read_config(path)
    with pytest.raises(CheckpointError, match=r"jina_task: 'poems' is not one of lora_adaptations"):
        registry.family(config)(config)
    edit_config(path, jina_task=None, lora_adaptations=TASKS[:3])
    with pytest.raises(CheckpointError, match=r"lora_A: has shape \[5, .*rank 2 for each of 3 tasks"):
        Rig(path)


@pytest.mark.parametrize("kind", ["vectors", "scores"])
def test_learned_positions_in_this_format_are_those_of_xlm_roberta(kind: str, tmp_path: Path) -> None:
    """jina-reranker-v2."""
    scores = kind == "scores"
    path = make_classifier("xlm-roberta", tmp_path, 1) if scores else make_encoder("xlm-roberta", tmp_path)
    model = (transformers.AutoModelForSequenceClassification if scores else transformers.AutoModel).from_pretrained(path).eval()
    out: dict[str, torch.Tensor] = {}
    names = {
        "embeddings.LayerNorm": "emb_ln", "encoder.layer.": "encoder.layers.", "attention.output.dense": "mixer.out_proj",
        "attention.output.LayerNorm": "norm1", "intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2",
        "output.LayerNorm": "norm2",
    }  # fmt: skip
    for name, w in load_file(path / "model.safetensors").items():
        if match := re.fullmatch(r"(.*layer\.\d+\.)attention\.self\.query\.(weight|bias)", name):
            parts = (model.state_dict()[name.replace("query", part)] for part in ("query", "key", "value"))
            out[f"{match[1].replace('layer.', 'layers.')}mixer.Wqkv.{match[2]}"] = torch.cat([*parts])
        elif "attention.self" not in name:
            for old, new in names.items():
                name = name.replace(old, new)
            out[name] = w
    save_file(out, path / "model.safetensors", {"format": "pt"})
    edit_config(path, use_flash_attn=True)
    for got, ids in zip(pooled(Rig(path, max_len=256), texts()), texts(), strict=True):
        with torch.inference_mode():
            found = model(torch.tensor([ids]))
        want = found.logits[0] if scores else found.last_hidden_state[0].mean(0)
        np.testing.assert_allclose(got, want.numpy(), atol=1e-5)
