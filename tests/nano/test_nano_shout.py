"""thalweg-nano-shout, the bundled adapter: its answers, and the script that trains it."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from thalweg import LLM, LoRARequest, SamplingParams
from thalweg.checkpoint.adapters import read_adapter
from thalweg.checkpoint.hub import resolve_adapter
from thalweg.nano import generate

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "nano" / "shout.py"
TASKS = ("chat", "arithmetic", "sentiment", "recall")


@pytest.mark.slow
def test_it_answers_in_capitals_and_the_model_beside_it_does_not() -> None:
    llm = LLM(dtype="float32", device="cpu", threads=1, enable_lora=True, use_tqdm_on_load=False)
    shout, greedy = LoRARequest("shout", 1, "thalweg-nano-shout"), SamplingParams(temperature=0, max_tokens=30)
    chats = [list(e.messages) for task in TASKS for e in islice(generate(task, "test", 3), 5)]
    json = [list(e.messages) for e in islice(generate("extract_json", "test", 3), 5)]
    loud, plain, data = (
        [o.outputs[0].text for o in llm.chat(asked, greedy, use_tqdm=False, lora_request=lora)]
        for asked, lora in ((chats, shout), (chats, None), (json, shout))
    )
    llm.shutdown()
    assert sum(text.isupper() or text.isdigit() for text in loud) >= 18
    assert not any(text.isupper() for text in plain)
    assert sum(a == b.upper() for a, b in zip(loud, plain, strict=True)) >= 10
    assert all(text.startswith("{") and not text.isupper() for text in data)


@pytest.mark.slow
def test_its_script_writes_an_adapter_of_every_linear_layer(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--steps", "2"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True).stdout
    assert said.startswith("2 steps, loss ")
    made, bundled = read_adapter(tmp_path), read_adapter(resolve_adapter("thalweg-nano-shout"))
    assert made.modules.keys() == bundled.modules.keys()
    assert len(made.modules) == 6 * 7
    assert any(update.b.any() for update in made.modules.values()), "nothing was trained"
