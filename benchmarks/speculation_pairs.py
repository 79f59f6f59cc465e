"""Models of random weights and drafters of them that are right for a chosen share of tokens.

The target's next token is a function of its newest one: a random permutation of the vocabulary. Its layers add little to the
embedding, and row P(t) of the output matrix is the embedding of token t. A drafter has the same output matrix, and noise in its
embeddings. The amount of noise is found by bisection, so that the share of right tokens is the chosen one. Every engine that
decodes greedily therefore computes the same text, and accepts the same drafts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import make_shape_model
import weights

SHAPE = "qwen3-0.6b"
LAYER_SCALE = 0.05
"""Of what a layer adds to the embedding, to what random weights would."""
SAMPLED, STEPS = 256, 12
"""Tokens by which the noise is chosen, and bisections."""


class Pair:
    """Embedding, permutation and noise of a target and its drafter."""

    def __init__(self, vocab: int, hidden: int, acceptance: float, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self.embedding = self._draw(vocab, hidden)
        self.after = torch.randperm(vocab, generator=self._random)
        self.head = torch.empty_like(self.embedding)
        self.head[self.after] = self.embedding
        self._acceptance = acceptance

    def _draw(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.bfloat16).normal_(generator=self._random)

    def noise(self, of: Callable[[Tensor], Tensor]) -> float:
        """The factor of noise with which the chosen share of tokens is right. of: ids -> noise [N, hidden]."""
        ids = torch.randperm(len(self.embedding), generator=self._random)[:SAMPLED]
        plain, noisy = (x.float() @ self.head.float().T for x in (self.embedding[ids], of(ids)))
        low, high = 0.0, 64.0
        for _ in range(STEPS):
            factor = (low + high) / 2
            right = ((plain + factor * noisy).argmax(-1) == self.after[ids]).float().mean()
            low, high = (factor, high) if right > self._acceptance else (low, factor)
        return low

    def layers(self, config: Mapping[str, Any], qk_norm: bool) -> dict[str, Tensor]:
        """Weights of a Llama-like model, without embedding and output matrix."""
        result = {}
        for name, shape in weights.shapes(config, qk_norm).items():
            if "norm" in name:
                result[name] = torch.ones(shape, dtype=torch.bfloat16)
            elif not name.startswith(("model.embed_tokens", "lm_head")):
                scale = LAYER_SCALE if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                result[name] = self._draw(*shape) * (scale * 0.02)
        return result


def describe(vocab: int | None, layers: int | None, **more: Any) -> dict[str, Any]:
    """config.json of the shape, with an output matrix that is not tied."""
    config = {**make_shape_model.COMMON, **make_shape_model.SHAPES[SHAPE], "dtype": "bfloat16", "tie_word_embeddings": False}
    config |= {"vocab_size": vocab or config["vocab_size"], "num_hidden_layers": layers or config["num_hidden_layers"]}
    return config | more


def write(path: Path, config: Mapping[str, Any], tensors: dict[str, Tensor]) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(dict(config), indent=2) + "\n")
    save_file({n: t.contiguous() for n, t in tensors.items()}, path / "model.safetensors", {"format": "pt"})
    make_shape_model._tokenizer(path, config["vocab_size"])
    return path


def make_draft_pair(
    folder: Path, acceptance: float, vocab: int | None, layers: int | None, draft_layers: int, seed: int = 0
) -> tuple[Path, Path]:
    """(target, draft model), as Qwen 3."""
    config = describe(vocab, layers)
    pair = Pair(config["vocab_size"], config["hidden_size"], acceptance, seed)
    ends = {"model.embed_tokens.weight": pair.embedding, "lm_head.weight": pair.head}
    target = write(folder / "target", config, pair.layers(config, True) | ends)
    noise = pair._draw(*pair.embedding.shape)
    noisy = (pair.embedding.float() + pair.noise(lambda ids: noise[ids]) * noise.float()).bfloat16()
    config = describe(vocab, draft_layers)
    return target, write(folder / "draft", config, pair.layers(config, True) | {**ends, "model.embed_tokens.weight": noisy})


def make_mtp_model(folder: Path, acceptance: float, vocab: int | None, layers: int | None, seed: int = 0) -> Path:
    """A target with a module for multi-token prediction, as MiMo. The noise is a matrix in the module's projection."""
    config = describe(vocab, layers, architectures=["MiMoForCausalLM"], model_type="mimo", num_nextn_predict_layers=1)
    hidden = config["hidden_size"]
    pair = Pair(config["vocab_size"], hidden, acceptance, seed)
    tensors = pair.layers(config, False)
    module = {n.replace("layers.0.", "mtp_layers.0."): t.clone() for n, t in tensors.items() if n.startswith("model.layers.0.")}
    matrix = pair._draw(hidden, hidden) / hidden**0.5
    factor = pair.noise(lambda ids: pair.embedding[ids] @ matrix.T)
    token = (torch.eye(hidden) + factor * matrix.float()).bfloat16()
    module["model.mtp_layers.0.input_proj.weight"] = torch.cat([torch.zeros_like(token), token], 1)
    norms = ("token_layernorm", "hidden_layernorm", "final_layernorm")
    module |= {f"model.mtp_layers.0.{n}.weight": torch.ones(hidden, dtype=torch.bfloat16) for n in norms}
    tensors |= module
    for name in [n for n in tensors if n.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]:
        tensors[f"{name.removesuffix('weight')}bias"] = torch.zeros(len(tensors[name]), dtype=torch.bfloat16)
    ends = {"model.embed_tokens.weight": pair.embedding, "lm_head.weight": pair.head}
    return write(folder / "mtp", config, tensors | ends)


def read_bytes(path: Path, part: str = "") -> int:
    """Bytes that a token of one sequence reads: of layers and the output matrix. part: begins the names of the module's."""
    from safetensors import safe_open

    total = 0
    with safe_open(path / "model.safetensors", "pt") as files:
        for name in files.keys():  # noqa: SIM118
            module = "mtp_layers." in name
            if name == "lm_head.weight" or (name != "model.embed_tokens.weight" and module == bool(part)):
                shape = files.get_slice(name).get_shape()
                total += 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    return total
