"""Drafters in GGUF files: draft models, and modules for multi-token prediction. Their drafts are those of equal values
elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from converted import convert
from families import convert_family
from test_models import wide
from test_mtp import PROMPTS, Published, check_log_probabilities

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
    with pytest.raises(ConfigError, match=r"has id .* for the token 'a', and the target"):
        serve(tmp_path / "target", file)


def test_drafts_of_a_module_in_a_gguf_file_are_those_of_the_published_formula(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GLM-4.5 and later have it in a layer after the last."""
    monkeypatch.setattr(Gain, "allows", lambda self, streams: True)
    model = Published("glm")
    (tmp_path / "source").mkdir()
    model.save(tmp_path / "source")
    file = convert_family(
        "glm4-moe", tmp_path / "source", tmp_path / "model.gguf", keys={"block_count": 3, "nextn_predict_layers": 1}
    )
    check_log_probabilities(model, file, PROMPTS[3], monkeypatch)
