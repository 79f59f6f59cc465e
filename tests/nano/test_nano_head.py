"""The module for multi-token prediction of the bundled model: how often its drafts are right, and the script that trains it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.hub import resolve_model
from thalweg.engine.control.speculation.gain import Gain
from thalweg.nano.score import held_out

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "nano" / "head.py"
TASKS = ("chat", "copy", "case", "extract_json", "tool_call", "passage")


@pytest.mark.slow
def test_most_of_its_drafts_of_held_out_answers_are_right_and_the_text_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gain, "allows", lambda self, streams: True)
    examples = [e for task in TASKS for e in held_out(task, 2, 7)]
    texts = []
    for drafts in (None, {"method": "mtp", "num_speculative_tokens": 3}):
        llm = LLM(device="cpu", threads=1, max_num_seqs=4, speculative_config=drafts, use_tqdm_on_load=False)
        params = SamplingParams(temperature=0, max_tokens=48)
        answers = [llm.chat(list(e.messages), params, tools=list(e.tools) or None, use_tqdm=False)[0] for e in examples]
        texts.append([list(a.outputs[0].token_ids) for a in answers])
        stats = llm.stats()
        llm.shutdown()
    assert texts[0] == texts[1]
    first, second, third = (right / stats.drafts for right in stats.accepted_per_position)
    assert first > 0.85, "a wrong tap, shift or order of inputs shows here"
    assert second > 0.65
    assert third > 0.45


@pytest.mark.nightly
def test_its_script_lowers_the_loss_and_writes_the_tensors_of_the_bundled_module(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--steps", "60"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=400, check=True).stdout
    before, after = map(float, re.search(r"loss (\S+) at first and (\S+) at last", said).groups())
    assert after < before / 3
    assert float(re.search(r"by pass: (\S+),", said)[1]) > 0.4
    made, bundled = (load_file(p / "model.safetensors") for p in (tmp_path, resolve_model("thalweg-nano") / "mtp"))
    assert {name: t.shape for name, t in made.items()} == {name: t.shape for name, t in bundled.items()}
