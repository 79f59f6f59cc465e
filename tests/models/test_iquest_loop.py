"""IQuest-Coder Loop against its definition, which transformers does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from decoder_parts import Parts, attend, draw, turn, write
from definitions import compare, compare_under_pressure
from rig import Rig
from test_families import prompts
from thread_ranks import Ring, run_ranks
from torch import Tensor

from thalweg.checkpoint.config import read_config
from thalweg.errors import UnsupportedModelError
from thalweg.hal.discovery import load
from thalweg.hal.platform import Place
from thalweg.models import registry, sizes

VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV, SIZE, WINDOW = 96, 48, 80, 3, 4, 2, 16, 7
CONFIG: dict[str, Any] = {
    "architectures": ["IQuestLoopCoderForCausalLM"], "model_type": "iquestloopcoder", "vocab_size": VOCAB,
    "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": KV, "head_dim": SIZE, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "loop_num": 2,
    "loop_window_size": WINDOW, "max_position_embeddings": 256, "attention_bias": False, "mlp_bias": False,
    "hidden_act": "silu", "tie_word_embeddings": False, "eos_token_id": 95, "dtype": "float32",
}  # fmt: skip


def shapes() -> dict[str, tuple[int, ...]]:
    made: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN),
    }  # fmt: skip
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        made |= {
            f"{at}self_attn.q_proj.weight": (HEADS * SIZE, HIDDEN), f"{at}self_attn.k_proj.weight": (KV * SIZE, HIDDEN),
            f"{at}self_attn.v_proj.weight": (KV * SIZE, HIDDEN), f"{at}self_attn.o_proj.weight": (HIDDEN, HEADS * SIZE),
            f"{at}mlp.gate_proj.weight": (INNER, HIDDEN), f"{at}mlp.up_proj.weight": (INNER, HIDDEN),
            f"{at}mlp.down_proj.weight": (HIDDEN, INNER), f"{at}input_layernorm.weight": (HIDDEN,),
            f"{at}post_attention_layernorm.weight": (HIDDEN,), f"model.gate_projections.{i}.weight": (HEADS, SIZE),
            f"model.gate_projections.{i}.bias": (HEADS,),
        }  # fmt: skip
    return made


class Definition(Parts):
    def __call__(self, ids: list[int]) -> Tensor:
        x, first = self.t["model.embed_tokens.weight"][ids], []
        for again in (False, True):
            for i in range(LAYERS):
                at = f"model.layers.{i}."
                h = self.rms(x, self.t[f"{at}input_layernorm.weight"], 1e-5)
                q, k, v = (self.linear(h, f"{at}self_attn.{p}_proj").unflatten(-1, (-1, SIZE)).transpose(0, 1) for p in "qkv")
                q, k = turn(q, 5e5), turn(k, 5e5)
                out = attend(q, *first[i]) if again else attend(q, k, v)
                if again:
                    logits = (q.transpose(0, 1) * self.t[f"model.gate_projections.{i}.weight"]).sum(-1)
                    gate = torch.sigmoid(logits + self.t[f"model.gate_projections.{i}.bias"])[..., None]
                    out = gate * out + (1 - gate) * attend(q, k, v, WINDOW)
                first.append((k, v))
                x = x + self.linear(out.flatten(1), f"{at}self_attn.o_proj")
                h = self.rms(x, self.t[f"{at}post_attention_layernorm.weight"], 1e-5)
                inner = F.silu(self.linear(h, f"{at}mlp.gate_proj")) * self.linear(h, f"{at}mlp.up_proj")
                x = x + self.linear(inner, f"{at}mlp.down_proj")
        return self.linear(self.rms(x, self.t["model.norm.weight"], 1e-5), "lm_head")


def make(directory: Path) -> tuple[Path, Definition]:
    tensors = draw(shapes(), 8)
    return write(directory, CONFIG, tensors), Definition(tensors)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Definition]:
    return make(tmp_path_factory.mktemp("iquest"))


@pytest.mark.parametrize("platform", ["cpu", pytest.param("reference", marks=pytest.mark.slow)])
def test_tokens_and_log_probabilities_are_those_of_the_definition(checkpoint, platform):
    compare(*checkpoint, VOCAB, platform)


@pytest.mark.slow
def test_the_same_under_preemption_and_prefix_hits(checkpoint):
    compare_under_pressure(*checkpoint, VOCAB)


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


def test_the_values_of_the_file_are_those_that_are_counted(checkpoint):
    path, definition = checkpoint
    config = read_config(path)
    assert sizes.stored_values(registry.family(config)(config)) == sum(t.numel() for t in definition.t.values())
    with pytest.raises(UnsupportedModelError, match="loop_num"):
        registry.family(config)({**config, "loop_num": 3})
