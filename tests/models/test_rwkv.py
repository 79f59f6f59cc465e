"""RWKV-7 against its authors' package, and RWKV in the engine: preempted, cached, in chunks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rig import Rig
from safetensors.numpy import save_file
from zoo import make_tokenizer

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.errors import UnsupportedModelError
from thalweg.hal.comm import Mesh
from thalweg.hal.discovery import load as load_platform
from thalweg.hal.op import Binder
from thalweg.hal.platform import Place
from thalweg.models import registry, sizes
from thalweg.models.build import build
from thalweg.models.load import load_params
from thalweg.models.weights import walk

HIDDEN, LAYERS, VOCAB, INNER = 128, 3, 288, 96
RANKS = {"w": 8, "a": 12, "g": 16, "v": 20}
CONFIG: dict[str, Any] = {
    "architectures": ["RWKV7ForCausalLM"], "model_type": "rwkv7", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
    "vocab_size": VOCAB, "intermediate_size": INNER, "head_dim": 64, "num_heads": 2, "decay_low_rank_dim": 8,
    "a_low_rank_dim": 12, "gate_low_rank_dim": 16, "v_low_rank_dim": 20, "hidden_act": "sqrelu", "norm_bias": True,
    "norm_eps": 1e-5, "norm_first": True, "attn": None, "value_dim": [HIDDEN] * LAYERS, "max_position_embeddings": 256,
    "tie_word_embeddings": False, "fuse_norm": True, "torch_dtype": "float32", "hidden_ratio": 4.0,
}  # fmt: skip
RECORDED: list[tuple[list[int], list[float]]] = [
    (
        [95, 199, 273, 257, 172, 252, 141, 162, 1, 156],
        [-1.687464, -0.982669, -1.591918, -0.852334, -1.340606, -1.792043, -1.646359, -1.454523, -1.933449, -0.290709],
    ),
    (
        [113, 85, 208, 80, 51, 267, 191, 275, 186, 111],
        [-0.887447, -0.969083, -1.874322, -1.404804, -1.107569, -1.631833, -0.568947, -1.111112, -0.968013, -1.020424],
    ),
    (
        [206, 234, 275, 104, 264, 234, 64, 208, 273, 85],
        [-1.898046, -0.770372, -1.475018, -1.349314, -1.419749, -1.63846, -0.66819, -1.626422, -1.88088, -0.182335],
    ),
    (
        [162, 142, 43, 105, 241, 39, 246, 74, 113, 95],
        [-0.515608, -1.112584, -0.902848, -1.005173, -0.904308, -0.53641, -0.990398, -1.841914, -0.687004, -1.118997],
    ),
    (
        [113, 81, 226, 102, 229, 153, 7, 104, 113, 87],
        [-0.550806, -1.344815, -0.61092, -1.618243, -1.705786, -1.309635, -0.653752, -0.676304, -2.219024, -1.881687],
    ),
]  # fmt: skip
"""Greedy tokens and their log-probabilities of the same weights in `rwkv` 0.8.32 from PyPI (`cpu fp32`), which reads them by
its own names. Of the prompts of `prompts`."""


def make_weights() -> dict[str, np.ndarray]:
    rng, made = np.random.default_rng(7), dict[str, np.ndarray]()

    def draw(name: str, *shape: int, std: float = 1.0, mean: float = 0.0) -> None:
        made[name] = (mean + std * rng.normal(size=shape)).astype(np.float32)

    def draw_norm(name: str) -> None:
        draw(f"{name}.weight", HIDDEN, std=0.2, mean=1)
        draw(f"{name}.bias", HIDDEN, std=0.2)

    draw("model.embeddings.weight", VOCAB, HIDDEN)
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        for name in [*["pre_norm"] * (i == 0), "attn_norm", "ffn_norm"]:
            draw_norm(at + name)
        for part in "rwkvag":
            draw(f"{at}attn.x_{part}", 1, 1, HIDDEN, std=0.3, mean=0.5)
        for part in "rkvo":
            draw(f"{at}attn.{part}_proj.weight", HIDDEN, HIDDEN, std=1.2 / HIDDEN**0.5)
        for part, rank in RANKS.items():
            if part == "v" and i == 0:
                continue
            draw(f"{at}attn.{part}_lora.lora.0.weight", rank, HIDDEN, std=1.2 / HIDDEN**0.5)
            draw(f"{at}attn.{part}_lora.lora.2.weight", HIDDEN, rank, std=1.2 / rank**0.5)
            if part != "g":
                draw(f"{at}attn.{part}_lora.lora.2.bias", HIDDEN, std=1.5, mean=-1 if part == "w" else 0)
        draw(f"{at}attn.k_k", HIDDEN, std=0.2, mean=0.8)
        draw(f"{at}attn.k_a", HIDDEN, std=0.2, mean=1)
        draw(f"{at}attn.r_k", HIDDEN // 64, 64, std=0.3)
        draw_norm(f"{at}attn.g_norm")
        draw(f"{at}ffn.x_k", HIDDEN, std=0.3, mean=0.5)
        draw(f"{at}ffn.key.weight", INNER, HIDDEN, std=1.2 / HIDDEN**0.5)
        draw(f"{at}ffn.value.weight", HIDDEN, INNER, std=0.5 / INNER**0.5)
    draw_norm("model.norm")
    draw("lm_head.weight", VOCAB, HIDDEN, std=0.25)
    return made


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("rwkv7")
    save_file(make_weights(), made / "model.safetensors")
    (made / "config.json").write_text(json.dumps(CONFIG))
    make_tokenizer(made)
    return made


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, VOCAB, n).tolist() for n in (31, 1, 18, 7, 40)]


@pytest.mark.parametrize("platform", ["cpu", pytest.param("reference", marks=pytest.mark.slow)])
def test_greedy_tokens_are_those_of_the_package_of_the_authors(platform, path):
    """In chunks, in mixed batches."""
    for s, (tokens, logprobs) in zip(
        Rig(path, platform=platform).generate(prompts(), 10, chunk=6, budget=17), RECORDED, strict=True
    ):
        assert s.tokens[s.prompt :] == tokens
        np.testing.assert_allclose(s.logprobs, logprobs, atol=1e-4)


def test_preempted_and_cached_answers_are_the_same(path):
    params = SamplingParams(temperature=0, max_tokens=10, logprobs=0, ignore_eos=True)
    asked = [{"prompt_token_ids": p} for p in prompts()]
    llm = LLM(str(path), device="cpu", dtype="float32", max_num_seqs=3, max_num_batched_tokens=16, use_tqdm_on_load=False)
    for _ in range(2):
        for out, (tokens, logprobs) in zip(llm.generate(asked, params, use_tqdm=False), RECORDED, strict=True):
            assert list(out.outputs[0].token_ids) == tokens
            found = [step[t].logprob for step, t in zip(out.outputs[0].logprobs, tokens, strict=True)]
            np.testing.assert_allclose(found, logprobs, atol=1e-4)
    llm.shutdown()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attn": {"layers": [1]}}, "attn: layers with attention"),
        ({"hidden_act": "gelu"}, "hidden_act: unknown 'gelu'"),
        ({"value_dim": 256}, "value_dim: must be hidden_size, 128"),
    ],
)
def test_settings_without_an_implementation_are_refused(changes, words, path):
    config = {**read_config(path), **changes}
    with pytest.raises(UnsupportedModelError, match=words):
        registry.family(config)(config)


def test_ranks_that_a_file_omits(path):
    """By the formulas of flash-linear-attention."""
    wanted = {768: (64, 64, 128, 32), 2048: (128, 128, 224, 64)}
    for hidden, ranks in wanted.items():
        config = {k: v for k, v in read_config(path).items() if not k.endswith("_low_rank_dim") and k != "value_dim"}
        config["hidden_size"] = hidden
        assert registry.family(config)(config).layers[0].mixer.ranks == ranks


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bytes_counted_are_the_bytes_held(dtype, path):
    config, device = read_config(path), load_platform("reference").open(Place())
    built = build(config, binder=Binder(()), attention=device.attention, mesh=Mesh(), dtype=dtype, max_len=24, block_tokens=4)
    params = load_params(built, path, device, load_format="dummy", progress=False)
    held = {t.data_ptr(): t.nbytes for _, t in walk(params) if isinstance(t, torch.Tensor)}
    assert sizes.weight_bytes(registry.family(config)(config), dtype, 24) == sum(held.values())


def test_texts_in_and_out_with_the_world_vocabulary(path, tmp_path):
    """As published: no tokenizer.json. Each byte is a token."""
    for name in ("model.safetensors", "config.json"):
        (tmp_path / name).symlink_to(path / name)
    tokens = [bytes([b]) if b > 127 else chr(b) for b in range(256)]
    lines = [f"{i} {token!r} 1" for i, token in enumerate(tokens, 1)]
    (tmp_path / "rwkv_vocab_v20230424.txt").write_text("\n".join(lines), encoding="utf-8")
    llm = LLM(str(tmp_path), device="cpu", dtype="float32", use_tqdm_on_load=False)
    (done,) = llm.generate(["h\u00e9"], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), use_tqdm=False)
    llm.shutdown()
    ids = done.outputs[0].token_ids
    assert done.prompt_token_ids == [105, 196, 170]
    assert done.outputs[0].text == bytes(i - 1 for i in ids if 0 < i < 257).decode(errors="replace")
