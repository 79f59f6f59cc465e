"""A GGUF file as a draft model: its drafts are those of the values that the `gguf` package decodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from converted import convert
from test_models import wide

from thalweg import LLM, SamplingParams
from thalweg.engine.control.speculation.gain import Gain
from thalweg.errors import ConfigError


def serve(target: Path, draft: Path) -> LLM:
    drafter: dict[str, Any] = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": 3}
    return LLM(
        str(target), device="cpu", dtype="float32", max_model_len=96, max_num_seqs=2, speculative_config=drafter,
        use_tqdm_on_load=False,
    )  # fmt: skip


def test_drafts_of_a_gguf_file_are_those_of_its_decoded_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target has these values, so nearly all drafts are right. Another vocabulary is refused."""
    monkeypatch.setattr(Gain, "allows", lambda self, streams: True)  # whatever this machine's clock says
    source = wide("llama", tmp_path / "source")
    file = convert(source, tmp_path / "draft.gguf", lambda name, shape: "Q8_0", dense=tmp_path / "target")
    llm = serve(tmp_path / "target", file)
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    prompts = [{"prompt_token_ids": ids} for ids in ([5, 6, 7, 8, 5], [11, 3, 99], list(range(40, 60)))]
    llm.generate(prompts, params, use_tqdm=False)
    stats = llm.stats()
    llm.shutdown()
    assert stats.draft_tokens > 40
    assert stats.accepted_tokens > 0.9 * stats.draft_tokens
    words = json.loads((tmp_path / "target" / "tokenizer.json").read_text())
    vocab = words["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (tmp_path / "target" / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(ConfigError, match="has id .* for the token 'a', and the target"):
        serve(tmp_path / "target", file)
