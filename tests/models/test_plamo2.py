"""PLaMo 2 against its definition, which transformers does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from decoder_parts import Parts, attend, convolve, draw, turn, write
from definitions import compare, compare_under_pressure
from rig import Rig
from test_families import prompts
from thread_ranks import Ring, run_ranks
from torch import Tensor

from thalweg.errors import CheckpointError
from thalweg.hal.discovery import load
from thalweg.hal.platform import Place
from thalweg.models import registry

VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV, SIZE, SCANS, STATE, RANK = 96, 48, 80, 4, 4, 2, 16, 4, 8, 64
CONFIG: dict[str, Any] = {
    "architectures": ["Plamo2ForCausalLM"], "model_type": "plamo2", "vocab_size": VOCAB, "hidden_size": HIDDEN,
    "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV,
    "hidden_size_per_head": SIZE, "mamba_num_heads": SCANS, "mamba_d_state": STATE, "mamba_d_conv": 4, "mamba_step": 2,
    "mamba_chunk_size": 16, "rms_norm_eps": 1e-6, "max_position_embeddings": 256, "attention_window_size": 2048,
    "full_attention_idx": [], "mamba_enabled": True, "tie_word_embeddings": True, "eos_token_id": 95, "dtype": "float32",
}  # fmt: skip
OFFSETS = {"pre_mixer_norm": 1.0, "post_mixer_norm": 1 / 5, "pre_mlp_norm": 1.0, "post_mlp_norm": 5**-1.5}


def shapes() -> dict[str, tuple[int, ...]]:
    channels = SCANS * SIZE
    made: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        at, mixer = f"model.layers.layers.{i}.", f"model.layers.layers.{i}.mixer."
        made |= {f"{at}{name}.weight": (HIDDEN,) for name in OFFSETS}
        made |= {f"{at}mlp.gate_up_proj.weight": (2 * INNER, HIDDEN), f"{at}mlp.down_proj.weight": (HIDDEN, INNER)}
        if i % 2:
            made |= {
                f"{mixer}qkv_proj.weight": ((HEADS + 2 * KV) * SIZE, HIDDEN), f"{mixer}o_proj.weight": (HIDDEN, HEADS * SIZE),
                f"{mixer}q_weight": (HEADS, SIZE), f"{mixer}k_weight": (KV, SIZE),
            }  # fmt: skip
        else:
            made |= {
                f"{mixer}in_proj.weight": (2 * channels, HIDDEN), f"{mixer}conv1d.weight": (channels, 1, 4),
                f"{mixer}bcdt_proj.weight": (RANK + 2 * STATE, channels), f"{mixer}dt_proj.weight": (SCANS, RANK),
                f"{mixer}out_proj.weight": (HIDDEN, channels), f"{mixer}dt_norm_weight": (RANK,),
                f"{mixer}B_norm_weight": (STATE,), f"{mixer}C_norm_weight": (STATE,),
                **{f"{mixer}{name}": (SCANS,) for name in ("dt_bias", "A_log", "D")},
            }  # fmt: skip
    return made


class Definition(Parts):
    def __call__(self, ids: list[int]) -> Tensor:
        x = self.t["model.embed_tokens.weight"][ids]
        for i in range(LAYERS):
            at = f"model.layers.layers.{i}."
            mixed = (self.attention if i % 2 else self.scan)(self.norm(x, at, "pre_mixer_norm"), f"{at}mixer.")
            x = x + self.norm(mixed, at, "post_mixer_norm")
            fed = self.swiglu(self.norm(x, at, "pre_mlp_norm"), f"{at}mlp.gate_up_proj", f"{at}mlp.down_proj")
            x = x + self.norm(fed, at, "post_mlp_norm")
        return self.rms(x, 1 + self.t["model.norm.weight"]) @ self.t["model.embed_tokens.weight"].T

    def norm(self, x: Tensor, at: str, name: str) -> Tensor:
        return self.rms(x, OFFSETS[name] + self.t[f"{at}{name}.weight"])

    def attention(self, x: Tensor, at: str) -> Tensor:
        parts = self.linear(x, f"{at}qkv_proj").split((HEADS * SIZE, KV * SIZE, KV * SIZE), -1)
        q, k, v = (part.unflatten(-1, (-1, SIZE)) for part in parts)
        q, k = (self.rms(part, self.t[f"{at}{name}_weight"]) for part, name in ((q, "q"), (k, "k")))
        q, k = (turn(part.transpose(0, 1), 1e4) for part in (q, k))
        return self.linear(attend(q, k, v.transpose(0, 1)).flatten(1), f"{at}o_proj")

    def scan(self, x: Tensor, at: str) -> Tensor:
        z, x = self.linear(x, f"{at}in_proj").unflatten(-1, (SCANS, 2, SIZE)).unbind(2)
        x = F.silu(convolve(x.flatten(1), self.t[f"{at}conv1d.weight"]))
        parts = self.linear(x, f"{at}bcdt_proj").split((STATE, STATE, RANK), -1)
        b, c, low = (self.rms(p, self.t[f"{at}{n}_norm_weight"]) for p, n in zip(parts, ("B", "C", "dt"), strict=True))
        step = F.softplus(self.linear(low, f"{at}dt_proj") + self.t[f"{at}dt_bias"])
        x, rows, state = x.unflatten(-1, (SCANS, SIZE)), [], x.new_zeros(SCANS, SIZE, STATE)
        for t in range(len(x)):
            decay = torch.exp(-step[t] * self.t[f"{at}A_log"].exp())[:, None, None]
            state = state * decay + step[t][:, None, None] * x[t][..., None] * b[t]
            rows.append(state @ c[t] + self.t[f"{at}D"][:, None] * x[t])
        return self.linear((torch.stack(rows) * F.silu(z)).flatten(1), f"{at}out_proj")


def make(directory: Path) -> tuple[Path, Definition]:
    tensors = draw(shapes(), 5)
    for name in tensors:
        if name.endswith("norm.weight"):
            tensors[name] -= 1  # offsets are added
    return write(directory, CONFIG, tensors), Definition(tensors)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Definition]:
    return make(tmp_path_factory.mktemp("plamo2"))


@pytest.mark.parametrize("platform", ["cpu", pytest.param("reference", marks=pytest.mark.slow)])
def test_tokens_and_log_probabilities_are_those_of_the_definition(checkpoint, platform):
    compare(*checkpoint, VOCAB, platform)


@pytest.mark.slow
def test_the_same_under_preemption_and_prefix_hits(checkpoint):
    compare_under_pressure(*checkpoint, VOCAB, mamba_block_size=8)


@pytest.mark.slow
def test_two_ranks_give_the_log_probabilities_of_one(checkpoint):
    path, ring = checkpoint[0], Ring(2)
    asked = [[t % VOCAB for t in prompt] for prompt in prompts()[:3]]

    def generate(rank: int, comm: Ring | None = None):
        device = load("reference").open(Place())
        device.comm = device.comm if comm is None else comm
        return Rig(path, device=device, rank=rank).generate(asked, 4, chunk=8, budget=24)

    one = generate(0)
    for seqs in run_ranks(ring, lambda rank: generate(rank, ring)):
        for s, t in zip(seqs, one, strict=True):
            assert s.tokens == t.tokens
            np.testing.assert_allclose(s.scores + s.logprobs, t.scores + t.logprobs, atol=1e-4)


def test_layers_that_attend():
    """One of every `mamba_step`, the last of very few layers, and all without Mamba."""

    def attends(**changes: Any) -> list[bool]:
        config = {**CONFIG, **changes}
        return [type(layer.mixer).__name__ == "Attention" for layer in registry.family(config)(config).layers]

    assert attends(num_hidden_layers=6, mamba_step=4) == [False, False, True, False, False, False]
    assert attends(num_hidden_layers=2, mamba_step=8) == [False, True]
    assert attends(mamba_enabled=False) == [True] * LAYERS
    with pytest.raises(CheckpointError, match="mamba_step: must be at least 2"):
        attends(mamba_step=1)
