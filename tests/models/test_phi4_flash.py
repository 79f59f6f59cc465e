"""Phi-4-mini-flash against its definition, which transformers does not have."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from decoder_parts import Parts, attend, convolve, draw, write
from definitions import compare, compare_under_pressure
from torch import Tensor

from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models import registry, sizes

VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV, SIZE, CHANNELS, STATE, RANK, WINDOW = 96, 64, 80, 8, 8, 4, 8, 128, 6, 5, 9
CONFIG: dict[str, Any] = {
    "architectures": ["Phi4FlashForCausalLM"], "model_type": "phi4flash", "vocab_size": VOCAB, "hidden_size": HIDDEN,
    "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV,
    "mb_per_layer": 2, "mamba_d_state": STATE, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": RANK,
    "mamba_conv_bias": True, "mamba_proj_bias": False, "layer_norm_eps": 1e-5, "sliding_window": WINDOW, "hidden_act": "silu",
    "max_position_embeddings": 256, "tie_word_embeddings": True, "mlp_bias": False, "lm_head_bias": False,
    "eos_token_id": 95, "dtype": "float32",
}  # fmt: skip
LAMBDAS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


def shapes() -> dict[str, tuple[int, ...]]:
    made: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    made |= {f"model.final_layernorm.{part}": (HIDDEN,) for part in ("weight", "bias")}
    for i in range(LAYERS):
        at, mixer = f"model.layers.{i}.", f"model.layers.{i}.attn."
        norms = ("input_layernorm", "post_attention_layernorm")
        made |= {f"{at}{name}.{part}": (HIDDEN,) for name in norms for part in ("weight", "bias")}
        made |= {f"{at}mlp.fc1.weight": (2 * INNER, HIDDEN), f"{at}mlp.fc2.weight": (HIDDEN, INNER)}
        if i % 2:
            rows = HEADS * SIZE + (2 * KV * SIZE if i < LAYERS // 2 + 2 else 0)
            made |= {f"{mixer}Wqkv.weight": (rows, HIDDEN), f"{mixer}Wqkv.bias": (rows,)}
            made |= {f"{mixer}out_proj.weight": (HIDDEN, HEADS * SIZE), f"{mixer}out_proj.bias": (HIDDEN,)}
            made |= {f"{mixer}inner_cross_attn.{name}": (SIZE,) for name in LAMBDAS}
            made[f"{mixer}inner_cross_attn.subln.weight"] = (2 * SIZE,)
        elif i > LAYERS // 2:
            made |= {f"{mixer}in_proj.weight": (CHANNELS, HIDDEN), f"{mixer}out_proj.weight": (HIDDEN, CHANNELS)}
        else:
            made |= {
                f"{mixer}in_proj.weight": (2 * CHANNELS, HIDDEN), f"{mixer}conv1d.weight": (CHANNELS, 1, 4),
                f"{mixer}conv1d.bias": (CHANNELS,), f"{mixer}x_proj.weight": (RANK + 2 * STATE, CHANNELS),
                f"{mixer}dt_proj.weight": (CHANNELS, RANK), f"{mixer}dt_proj.bias": (CHANNELS,),
                f"{mixer}A_log": (CHANNELS, STATE), f"{mixer}D": (CHANNELS,), f"{mixer}out_proj.weight": (HIDDEN, CHANNELS),
            }  # fmt: skip
    return made


class Definition(Parts):
    def __call__(self, ids: list[int]) -> Tensor:
        x = self.t["model.embed_tokens.weight"][ids]
        memory = keys = None
        for i in range(LAYERS):
            at = f"model.layers.{i}."
            h = self.layer_norm(x, f"{at}input_layernorm")
            if i % 2:
                mixed, keys = self.attention(h, f"{at}attn.", i, keys)
            elif i > LAYERS // 2:
                mixed = self.linear(memory * F.silu(self.linear(h, f"{at}attn.in_proj")), f"{at}attn.out_proj")
            else:
                mixed, memory = self.scan(h, f"{at}attn.")
            x = x + mixed
            x = x + self.swiglu(self.layer_norm(x, f"{at}post_attention_layernorm"), f"{at}mlp.fc1", f"{at}mlp.fc2")
        return self.layer_norm(x, "model.final_layernorm") @ self.t["model.embed_tokens.weight"].T

    def attention(self, x: Tensor, at: str, i: int, keys: Any) -> tuple[Tensor, Any]:
        """keys: of the last layer that has some, which layers of the second half read."""
        projected = self.linear(x, f"{at}Wqkv").unflatten(-1, (-1, SIZE)).transpose(0, 1)
        q = projected[:HEADS]
        k, v = keys if i > LAYERS // 2 + 1 else projected[HEADS:].chunk(2)
        wide, window = torch.cat((v[0::2], v[1::2]), -1), WINDOW if i < LAYERS // 2 else 0
        first, second = (attend(q[half::2], k[half::2], wide, window) for half in (0, 1))
        vectors = (self.t[f"{at}inner_cross_attn.{name}"] for name in LAMBDAS)
        (q1, k1, q2, k2), start = vectors, 0.8 - 0.6 * math.exp(-0.3 * i)
        by = (q1 * k1).sum().exp() - (q2 * k2).sum().exp() + start
        normed = self.rms(first - by * second, self.t[f"{at}inner_cross_attn.subln.weight"], 1e-5) * (1 - start)
        return self.linear(normed.flatten(1), f"{at}out_proj"), (k, v)

    def scan(self, x: Tensor, at: str) -> tuple[Tensor, Tensor]:
        """The output, and the scan before its gate."""
        x, z = self.linear(x, f"{at}in_proj").chunk(2, -1)
        x = F.silu(convolve(x, self.t[f"{at}conv1d.weight"], self.t[f"{at}conv1d.bias"]))
        low, b, c = F.linear(x, self.t[f"{at}x_proj.weight"]).split((RANK, STATE, STATE), -1)
        step, rate = F.softplus(self.linear(low, f"{at}dt_proj")), -self.t[f"{at}A_log"].exp()
        rows, state = [], x.new_zeros(CHANNELS, STATE)
        for t in range(len(x)):
            state = state * torch.exp(step[t][:, None] * rate) + (step[t] * x[t])[:, None] * b[t]
            rows.append(state @ c[t] + self.t[f"{at}D"] * x[t])
        memory = torch.stack(rows)
        return self.linear(memory * F.silu(z), f"{at}out_proj"), memory


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Definition]:
    tensors = draw(shapes(), 6)
    return write(tmp_path_factory.mktemp("phi4flash"), CONFIG, tensors), Definition(tensors)


@pytest.mark.parametrize("platform", ["cpu", pytest.param("reference", marks=pytest.mark.slow)])
def test_tokens_and_log_probabilities_are_those_of_the_definition(checkpoint, platform):
    compare(*checkpoint, VOCAB, platform)


@pytest.mark.slow
def test_the_same_under_preemption_and_prefix_hits(checkpoint):
    compare_under_pressure(*checkpoint, VOCAB, mamba_block_size=8)


def test_the_values_of_the_file_are_those_that_are_counted(checkpoint):
    path, definition = checkpoint
    config = read_config(path)
    assert sizes.stored_values(registry.family(config)(config)) == sum(t.numel() for t in definition.t.values())


def test_windows_may_be_listed():
    def windows(said: Any) -> list[int]:
        config = {**CONFIG, "sliding_window": said}
        return [getattr(layer.mixer, "window", 0) for layer in registry.family(config)(config).layers if layer.mixer]

    assert windows(WINDOW) == windows([None, WINDOW, None, WINDOW, None, None, None, None])
    with pytest.raises(CheckpointError, match="must be a list of 8 numbers"):
        windows([WINDOW])
    with pytest.raises(UnsupportedModelError, match="second half"):
        windows([None] * 7 + [WINDOW])
    with pytest.raises(UnsupportedModelError, match="mb_per_layer"):
        registry.family(CONFIG)({**CONFIG, "mb_per_layer": 4})
