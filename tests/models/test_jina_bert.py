"""Jina's BERT: transformers' BERT layers with scores that fall by distance, and gated feed-forward parts. In two formats."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rig import Rig
from safetensors.torch import save_file
from test_encoders import pooled
from test_more_encoders import texts
from torch import Tensor
from zoo import make_tokenizer

from thalweg import LLM
from thalweg.errors import UnsupportedModelError
from thalweg.models import registry

VOCAB, HIDDEN, HEADS, INNER = 288, 48, 6, 40
CONFIG = {
    "architectures": ["JinaBertForMaskedLM"], "model_type": "bert", "vocab_size": VOCAB, "hidden_size": HIDDEN,
    "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": INNER, "hidden_act": "gelu",
    "max_position_embeddings": 8192, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0, "dtype": "float32",
    "position_embedding_type": "alibi", "feed_forward_type": "geglu", "emb_pooler": "mean",
}  # fmt: skip
SECOND = {
    **CONFIG,
    "auto_map": {"AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"},
}  # fmt: skip
"""As jina-embeddings-v2-base-code has it."""


def write(path: Path, second: bool = False) -> dict[str, Tensor]:
    """second: the format with QK-norm."""
    g, at = torch.Generator().manual_seed(2), "encoder.layer."
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (VOCAB, HIDDEN), "embeddings.token_type_embeddings.weight": (2, HIDDEN),
    }  # fmt: skip
    norms = ["embeddings.LayerNorm"]
    for i in range(2):
        own = f"{at}{i}.attention."
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= {f"{own}{name}.weight": (HIDDEN, HIDDEN), f"{own}{name}.bias": (HIDDEN,)}
        gated, down = ("up_gated_layer", "down_layer") if second else ("gated_layers", "wo")
        shapes |= {f"{at}{i}.mlp.{gated}.weight": (2 * INNER, HIDDEN), f"{at}{i}.mlp.{down}.weight": (HIDDEN, INNER)}
        shapes[f"{at}{i}.mlp.{down}.bias"] = (HIDDEN,)
        further = [f"{own}self.layer_norm_q", f"{own}self.layer_norm_k", f"{at}{i}.layer_norm_1", f"{at}{i}.layer_norm_2"]
        norms += [f"{own}output.LayerNorm", *(further if second else [f"{at}{i}.mlp.layernorm"])]
    for head in ("pooler.dense", "classifier"):
        rows = 1 if head == "classifier" else HIDDEN
        shapes |= {f"{head}.weight": (rows, HIDDEN), f"{head}.bias": (rows,)}
    out = {
        name: torch.randn(shape, generator=g) * (0.5 if len(shape) == 1 else 2 / shape[-1] ** 0.5)
        for name, shape in shapes.items()
    }
    for norm in norms:
        out |= {f"{norm}.weight": 1 + 0.3 * torch.randn(HIDDEN, generator=g), f"{norm}.bias": torch.randn(HIDDEN, generator=g)}
    (path / "config.json").write_text(json.dumps(SECOND if second else CONFIG))
    return out


def slopes(heads: int) -> list[float]:
    """As the authors' implementation has them (Press et al. 2021)."""
    if math.log2(heads).is_integer():
        return [2.0 ** (-8 * (i + 1) / heads) for i in range(heads)]
    below = 2 ** math.floor(math.log2(heads))
    return slopes(below) + slopes(2 * below)[0::2][: heads - below]


def states(t: dict[str, Tensor], ids: list[int]) -> Tensor:
    """f32[tokens, hidden]: the definition."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (HIDDEN,), t[f"{name}.weight"], t[f"{name}.bias"], 1e-12)

    x = norm(
        t["embeddings.word_embeddings.weight"][ids] + t["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm"
    )
    at = torch.arange(len(ids))
    fall = -torch.tensor(slopes(HEADS))[:, None, None] * (at[:, None] - at).abs()
    for i in range(2):
        layer = f"encoder.layer.{i}."
        own, mlp, second = f"{layer}attention.", f"{layer}mlp.", f"{layer}layer_norm_1.weight" in t
        q, k, v = (F.linear(x, t[f"{own}self.{p}.weight"], t[f"{own}self.{p}.bias"]) for p in ("query", "key", "value"))
        if second:
            q, k = norm(q, f"{own}self.layer_norm_q"), norm(k, f"{own}self.layer_norm_k")
        q, k, v = (each.view(len(ids), HEADS, -1).transpose(0, 1) for each in (q, k, v))
        y = (torch.softmax(q @ k.mT * (HIDDEN // HEADS) ** -0.5 + fall, -1) @ v).transpose(0, 1).flatten(1)
        y = norm(x + F.linear(y, t[f"{own}output.dense.weight"], t[f"{own}output.dense.bias"]), f"{own}output.LayerNorm")
        if second:
            x = norm(x + y, f"{layer}layer_norm_1")
            up, gate = F.linear(x, t[f"{mlp}up_gated_layer.weight"]).chunk(2, -1)
            y = F.linear(up * F.gelu(gate), t[f"{mlp}down_layer.weight"], t[f"{mlp}down_layer.bias"])
            x = norm(x + y, f"{layer}layer_norm_2")
            continue
        x = y
        gate, up = F.linear(x, t[f"{mlp}gated_layers.weight"]).chunk(2, -1)
        x = norm(x + F.linear(F.gelu(gate) * up, t[f"{mlp}wo.weight"], t[f"{mlp}wo.bias"]), f"{mlp}layernorm")
    return x


@pytest.mark.parametrize(("prefix", "second"), [("", False), ("bert.", False), ("", True), ("bert.", True)])
@pytest.mark.parametrize("platform", ["cpu", pytest.param("reference", marks=pytest.mark.slow)])
def test_vectors_are_those_of_the_definition(prefix: str, second: bool, platform: str, tmp_path: Path) -> None:
    t = write(tmp_path, second)
    body = {f"{prefix}{name}": w for name, w in t.items() if not name.startswith("classifier")}
    save_file(body, tmp_path / "model.safetensors", {"format": "pt"})
    for got, ids in zip(pooled(Rig(tmp_path, platform=platform, max_len=256), texts()), texts(), strict=True):
        np.testing.assert_allclose(got, states(t, ids).mean(0).numpy(), atol=2e-5)


@pytest.mark.parametrize("second", [False, True])
def test_the_files_decide_about_the_format(second: bool, tmp_path: Path) -> None:
    """A fine-tune's `auto_map` may name local classes, or those of the other format."""
    t = write(tmp_path, second)
    save_file({name: w for name, w in t.items() if not name.startswith("classifier")}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG if second else SECOND))
    make_tokenizer(tmp_path)
    llm = LLM(str(tmp_path), device="cpu", dtype="float32", max_model_len=256, use_tqdm_on_load=False)
    ids = [int(i) for i in texts()[0]]
    (out,) = llm.embed([{"prompt_token_ids": ids}], use_tqdm=False)
    llm.shutdown()
    np.testing.assert_allclose(out.outputs.embedding, F.normalize(states(t, ids).mean(0), dim=0).numpy(), atol=2e-5)


def test_scores_are_those_of_the_pooled_first_token(tmp_path: Path) -> None:
    t = write(tmp_path)
    save_file(
        {n if "classifier" in n else f"bert.{n}": w for n, w in t.items()}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    config = {**CONFIG, "architectures": ["JinaBertForSequenceClassification"], "num_labels": 1, "id2label": {"0": "LABEL_0"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for got, ids in zip(pooled(Rig(tmp_path, max_len=256), texts()), texts(), strict=True):
        first = torch.tanh(F.linear(states(t, ids)[0], t["pooler.dense.weight"], t["pooler.dense.bias"]))
        np.testing.assert_allclose(got, F.linear(first, t["classifier.weight"], t["classifier.bias"]).numpy(), atol=2e-5)


def test_other_positions_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="position_embedding_type, feed_forward_type: 'absolute', 'geglu'"):
        registry.family(CONFIG)({**CONFIG, "position_embedding_type": "absolute"})
