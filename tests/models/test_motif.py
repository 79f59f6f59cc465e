"""Motif against its definition, which transformers does not have."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_parts import Parts, attend, draw, turn, write
from definitions import compare, compare_under_pressure
from torch import Tensor

from thalweg.checkpoint.config import read_config
from thalweg.errors import UnsupportedModelError
from thalweg.models import registry, sizes

VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV, SIZE = 96, 64, 80, 3, 8, 4, 8
CONFIG: dict[str, Any] = {
    "architectures": ["MotifForCausalLM"], "model_type": "Motif", "vocab_size": VOCAB, "hidden_size": HIDDEN,
    "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV,
    "hidden_act": "poly_norm", "rms_norm_eps": 1e-6, "attn_rms_norm_eps": 1e-5, "rope_theta": 10000.0, "use_bias": False,
    "max_position_embeddings": 256, "tie_word_embeddings": True, "use_sliding_window": False, "eos_token_id": 95,
    "dtype": "float32",
}  # fmt: skip
LAMBDAS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


def shapes() -> dict[str, tuple[int, ...]]:
    made: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        at, mixer, mlp = f"model.layers.{i}.", f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp."
        made |= {f"{at}{name}.weight": (HIDDEN,) for name in ("input_layernorm", "post_attention_layernorm")}
        made |= {f"{mlp}{name}_proj.weight": (INNER, HIDDEN) for name in ("gate", "up")}
        made |= {f"{mlp}down_proj.weight": (HIDDEN, INNER), f"{mlp}act_fn.weight": (3,), f"{mlp}act_fn.bias": (1,)}
        made |= {f"{mixer}{name}_proj.weight": (rows * SIZE, HIDDEN) for name, rows in (("q", HEADS), ("k", KV), ("v", KV))}
        made |= {f"{mixer}o_proj.weight": (HIDDEN, HEADS * SIZE), f"{mixer}subln.weight": (2 * SIZE,)}
        made |= {f"{mixer}{name}": (SIZE,) for name in LAMBDAS}
    return made


class Definition(Parts):
    def __call__(self, ids: list[int]) -> Tensor:
        x = self.t["model.embed_tokens.weight"][ids]
        for i in range(LAYERS):
            at = f"model.layers.{i}."
            x = x + self.attention(self.rms(x, self.t[f"{at}input_layernorm.weight"]), f"{at}self_attn.", i)
            h = self.rms(x, self.t[f"{at}post_attention_layernorm.weight"])
            gate, by = self.linear(h, f"{at}mlp.gate_proj"), self.t[f"{at}mlp.act_fn.weight"]
            act = sum(by[n] * self.rms(gate ** (3 - n)) for n in range(3)) + self.t[f"{at}mlp.act_fn.bias"]
            x = x + self.linear(act * self.linear(h, f"{at}mlp.up_proj"), f"{at}mlp.down_proj")
        return self.rms(x, self.t["model.norm.weight"]) @ self.t["model.embed_tokens.weight"].T

    def attention(self, x: Tensor, at: str, i: int) -> Tensor:
        q, k, v = (self.linear(x, f"{at}{p}_proj").unflatten(-1, (-1, SIZE)).transpose(0, 1) for p in "qkv")
        q, k, wide = turn(q, 1e4), turn(k, 1e4), torch.cat((v[0::2], v[1::2]), -1)
        first, second = (attend(q[half::2], k[half::2], wide) for half in (0, 1))
        (q1, k1, q2, k2), start = (self.t[f"{at}{name}"] for name in LAMBDAS), 0.8 - 0.6 * math.exp(-0.3 * (i - 1))
        by = (q1 * k1).sum().exp() - (q2 * k2).sum().exp() + start
        normed = self.rms(first - by * second, self.t[f"{at}subln.weight"], 1e-5) * (1 - start)
        return self.linear(normed.flatten(1), f"{at}o_proj")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Definition]:
    tensors = draw(shapes(), 9)
    for name in tensors:
        if name.endswith("act_fn.weight"):
            tensors[name] += 1 / 3
    return write(tmp_path_factory.mktemp("motif"), CONFIG, tensors), Definition(tensors)


@pytest.mark.parametrize("platform", ["cpu", pytest.param("reference", marks=pytest.mark.slow)])
def test_tokens_and_log_probabilities_are_those_of_the_definition(checkpoint, platform):
    compare(*checkpoint, VOCAB, platform)


@pytest.mark.slow
def test_the_same_under_preemption_and_prefix_hits(checkpoint):
    compare_under_pressure(*checkpoint, VOCAB)


def test_the_values_of_the_file_are_those_that_are_counted(checkpoint):
    path, definition = checkpoint
    config = read_config(path)
    assert sizes.stored_values(registry.family(config)(config)) == sum(t.numel() for t in definition.t.values())
    for changes, words in (({"num_noise_heads": 8}, "num_noise_heads"), ({"hidden_act": "silu"}, "hidden_act: unknown 'silu'")):
        with pytest.raises(UnsupportedModelError, match=words):
            registry.family(config)({**config, **changes})
