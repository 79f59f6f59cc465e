"""Every family against transformers, same weights: greedy tokens, logprobs of generated and of prompt tokens, over mixed
batches of prefill chunks and decodes, with the hand-made batches of rig.py (no engine in between)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rig import ON_DEVICE, Rig, Seq
from safetensors.torch import load_file, save_file
from zoo import ALL, CONFIGS, VOCAB, edit_config, load_reference, make_checkpoint

from thalweg.hal.step import StepShape

NEW = 10


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, VOCAB, n).tolist() for n in (31, 1, 18, 7, 40)]


@torch.inference_mode()
def greedy(model: torch.nn.Module, prompt: list[int], new: int) -> tuple[list[int], torch.Tensor]:
    """(tokens with prompt, log-probabilities [len, vocab] at every position), a full forward per token."""
    ids = list(prompt)
    for _ in range(new):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids, model(torch.tensor([ids])).logits[0].float().log_softmax(-1)


BODIES = (
    *CONFIGS, "gpt-oss", "granite-moe", "gpt2", "ministral3", "cohere2", "hunyuan", "falcon-40b", "opt", "falcon-h1", "gemma3n",
    "llama4", "bloom", "kimi-linear", "minimax", "longcat-flash", "deepseek-v4", "qwen4-exp", "axk2", "diffllama", "zamba2",
    "rwkv-4", "xlstm", "zaya", "inkling",
)  # fmt: skip
"""Families with a part that none before them has: these are also run without a kernel."""
QUICK = {*CONFIGS, *BODIES}
CASES = [pytest.param(n, "cpu", marks=() if n in QUICK else pytest.mark.slow) for n in sorted(ALL)] + [
    pytest.param(n, "reference", marks=pytest.mark.slow) for n in sorted(BODIES)
]


@pytest.mark.parametrize(("name", "platform"), CASES)
@pytest.mark.sampled(8)
def test_greedy_tokens_and_logprobs_are_those_of_transformers(name, platform, tmp_path):
    path = make_checkpoint(name, tmp_path, tokenizer=False)
    oracle = load_reference(path, torch.float32)
    for s in Rig(path, platform=platform).generate(prompts(), NEW, chunk=6, budget=17):
        with torch.inference_mode():
            logp = oracle(torch.tensor([s.tokens])).logits[0].float().log_softmax(-1)
        assert s.tokens[s.prompt :] == logp[s.prompt - 1 : -1].argmax(-1).tolist()  # each is the best after those before it
        chosen = logp[torch.arange(len(s.tokens) - 1), torch.tensor(s.tokens[1:])].numpy()
        np.testing.assert_allclose(s.scores, chosen[: s.prompt - 1], atol=1e-4)
        np.testing.assert_allclose(s.logprobs, chosen[s.prompt - 1 :], atol=1e-4)


WRAPPED = {"gemma3n", "gemma4", "inkling", "longcat-flash", "deepseek-v4", "qwen4-exp", "zamba2", "zaya"}
"""Whose last layers are given something of every token beside what the layer before gives."""


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("name", sorted(BODIES))
@pytest.mark.sampled(8)
def test_the_last_layer_computes_the_rows_that_are_read_and_the_same(name, alone, tmp_path):
    """Also the caches are the same. alone: the last row of each sequence, which attention may know."""
    rig = Rig(make_checkpoint(name, tmp_path, tokenizer=False), platform="cpu", invariant=True)
    first, second, third = (Seq(i + 1, list(p), len(p)) for i, p in enumerate(prompts()[:3]))
    rig.step([(first, 20), (second, 1)])
    batch = rig.batch([(first, 11), (second, 1), (third, 18)]).map(torch.from_numpy)
    rows = batch.last_row if alone else torch.tensor([3, 10, 11, 29, 28])
    (whole, kept), (some, others) = (
        rig.model.forward(rig.params, batch, [_copied(each) for each in rig.box.value["kv"]], *asked) for asked in ((), (rows,))
    )
    assert torch.equal(some, whole[rows.long()])
    for one, other in zip(kept, others, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=0, equal_nan=True)
    assert (rig.model._mixes_last < 0) == (name in WRAPPED)


def _copied(cache: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor | tuple[torch.Tensor, ...]:
    return cache.clone() if isinstance(cache, torch.Tensor) else tuple(part.clone() for part in cache)


def test_feed_forward_of_the_last_layer_sees_no_row_that_nobody_reads(tmp_path, monkeypatch):
    rig = Rig(make_checkpoint("qwen3", tmp_path, tokenizer=False), platform="cpu")
    seen = []
    for block in rig.model.blocks.values():
        monkeypatch.setattr(block, "_ffn", lambda p, x, flow, inner=block._ffn: seen.append(len(x)) or inner(p, x, flow))
    first, second = (Seq(i + 1, list(p), len(p)) for i, p in enumerate(prompts()[:2]))
    rig.step([(first, 20), (second, 1)])
    assert seen == [21, 2]
    seen.clear()
    rig.step([(first, 11)], score=True)  # log-probabilities of prompt tokens are read from every row
    assert seen == [11, 11]


@pytest.mark.parametrize("name", ["llama-biased", "llama-3.1", "mistral", "qwen2", "qwen3", "deepseek-v3"])
@pytest.mark.sampled(2)
def test_bfloat16_differs_from_transformers_no_more_than_rounding(name, tmp_path):
    """Both round to bfloat16 at other places: each is as far from the float32 model as the other."""
    path = make_checkpoint(name, tmp_path, dtype=torch.bfloat16, tokenizer=False)
    rig = Rig(path, dtype="bfloat16")
    exact, rounded = load_reference(path, torch.float32), load_reference(path, torch.bfloat16)
    for slot, prompt in enumerate(prompts(), 1):
        if len(prompt) == 1:
            continue  # no prompt token to score
        s = Seq(slot, list(prompt), len(prompt))
        rig.step([(s, len(prompt))], score=True)
        at = torch.arange(len(prompt) - 1), torch.tensor(prompt[1:])
        with torch.inference_mode():
            want, other = (m(torch.tensor([prompt])).logits[0].float().log_softmax(-1)[at].numpy() for m in (exact, rounded))
        noise = np.abs(other - want).mean() + 2**-8
        assert np.abs(np.array(s.scores) - want).mean() < 2 * noise


def test_old_config_spelling_means_the_same(tmp_path):
    """rope_theta, rope_scaling with `type`, torch_dtype, no layer_types: files written before transformers 5."""
    path = make_checkpoint("llama-linear", tmp_path, tokenizer=False)
    oracle = load_reference(path, torch.float32)
    edit_config(
        path, rope_parameters=None, dtype=None, head_dim=None, rope_theta=10000.0, torch_dtype="float32",
        rope_scaling={"type": "linear", "factor": 4.0},
    )  # fmt: skip
    (s,) = Rig(path).generate(prompts()[:1], NEW, chunk=99, budget=99)
    assert s.tokens == greedy(oracle, prompts()[0], NEW)[0]


def test_a_sharded_checkpoint_loads_the_same_weights(tmp_path):
    whole = make_checkpoint("qwen3", tmp_path / "a", tokenizer=False)
    split = make_checkpoint("qwen3", tmp_path / "b", max_shard_size="60KB", tokenizer=False)
    assert len(list(split.glob("*.safetensors"))) > 2
    a, b = (Rig(p).generate(prompts(), 4, 8, 16) for p in (whole, split))
    assert [s.logprobs for s in a] == [s.logprobs for s in b]


def test_a_token_sampled_on_the_device_can_be_named_by_its_position(tmp_path):
    """ON_DEVICE reads the history: a step launched before the last one was read gives the same tokens."""
    path = make_checkpoint("llama", tmp_path, tokenizer=False)
    (want,) = Rig(path).generate(prompts()[:1], 5, chunk=99, budget=99)
    rig = Rig(path)
    s = Seq(1, list(prompts()[0]), len(prompts()[0]))
    got = [int(rig.step([(s, s.prompt)]).tokens[0, 0])]
    while len(got) < 5:
        s.tokens[-1] = ON_DEVICE
        got.append(int(rig.step([(s, 1)]).tokens[0, 0]))
    assert got == want.tokens[want.prompt :]


def test_prompt_logprobs_are_the_same_in_chunks(tmp_path, monkeypatch):
    """The score rows are computed some at a time: the boundaries must not show."""
    path = make_checkpoint("qwen2", tmp_path, tokenizer=False)
    whole = Rig(path).generate(prompts(), 1, 99, 999)
    monkeypatch.setattr("thalweg.models.step.SCORE_ROWS", 5)
    parts = Rig(path).generate(prompts(), 1, 99, 999)
    assert [len(s.scores) for s in parts] == [s.prompt - 1 for s in parts]
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_allclose(a.scores, b.scores, atol=1e-5)


@pytest.mark.parametrize("platform", ["reference", "cpu"])
def test_a_bucket_wider_than_the_longest_sequence_changes_nothing(platform, tmp_path):
    """Padding tokens count their positions on and on: past the rotary table, past the history."""
    path = make_checkpoint("qwen3-windowed", tmp_path, tokenizer=False)
    results = []
    for shape in (None, StepShape(200, 9, 16)):
        rig = Rig(path, platform=platform)
        batch = rig.batch([(Seq(i + 1, list(p), len(p)), len(p)) for i, p in enumerate(prompts())], score=True)
        if shape:
            batch = batch.pad(shape)
            batch.metadata = rig.model.metadata(batch, shape)
        results.append(rig.run(batch).result())
    plain, padded = results
    assert padded.tokens[: len(prompts())].tolist() == plain.tokens.tolist()
    scored = plain.score.values  # the list of scored rows is padded too
    np.testing.assert_allclose(padded.score.values[: len(scored)], scored, atol=1e-5)


def test_experts_in_one_tensor_are_those_that_have_one_each(tmp_path):
    """Qwen3.5's mixtures are stored in either way."""
    path = make_checkpoint("qwen3.5-moe", tmp_path, tokenizer=False)
    (want,) = Rig(path, platform="cpu").generate(prompts()[:1], 3, 99, 99)
    held = load_file(path / "model.safetensors")
    for at in {n.partition(".experts.")[0] + ".experts." for n in held if ".experts." in n}:
        each = range(sum(n.startswith(at) for n in held) // 3)
        rows = [torch.cat([held.pop(f"{at}{e}.{part}_proj.weight") for part in ("gate", "up")]) for e in each]
        held[f"{at}gate_up_proj"] = torch.stack(rows)
        held[f"{at}down_proj"] = torch.stack([held.pop(f"{at}{e}.down_proj.weight") for e in each])
    save_file(held, path / "model.safetensors", {"format": "pt"})
    (got,) = Rig(path, platform="cpu").generate(prompts()[:1], 3, 99, 99)
    assert (got.tokens, got.logprobs) == (want.tokens, want.logprobs)
