"""The example of a drafter outside the repository: installed as a package of its own, found, and no text depends on it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from installed import installed
from rig import Rig, Seq
from zoo import load_reference, make_checkpoint

from thalweg import LLM, SamplingParams, drafters
from thalweg.engine.control.speculation.gain import Gain

EXAMPLE = Path(__file__).parents[2] / "examples" / "drafter"
MOST_LINES = 100
SCRIPT = """
import json, sys
from thalweg import LLM, SamplingParams
from thalweg.engine.control.speculation.gain import Gain
from thalweg.errors import ConfigError
Gain.allows = lambda self, streams: True  # whatever this machine's clock says
prompts = ["one two three one two three one two", "a b c d a b c d a b", "12 + 30 ="] * 2
said = {}
for device in sys.argv[1:]:
    for asked in (None, {"method": "successor", "num_speculative_tokens": 3, "successor_buckets": 512}):
        llm = LLM(device=device, dtype="float32", max_model_len=128, max_num_seqs=4, max_num_batched_tokens=16, seed=0,
                  speculative_config=asked, use_tqdm_on_load=False)
        params = [SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.3 * (i % 2), seed=i) for i in range(6)]
        outs = llm.generate(prompts, params, use_tqdm=False)
        stats = llm.stats()
        said.setdefault(device, []).append(
            [[list(o.outputs[0].token_ids) for o in outs], stats.accepted_tokens, stats.draft_tokens, stats.steps])
        llm.shutdown()
try:
    LLM(speculative_config={"method": "successor", "num_speculative_tokens": 3, "successor_buckets": 1})
except ConfigError as e:
    said["refused"] = str(e)
print(json.dumps(said))
"""
HOST = "thalweg.backends.torch_gpu.testing:HostGpuPlatform"
"""Steps padded to buckets, two in flight."""


def run(folder: Path, *devices: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *devices], capture_output=True, text=True, env=installed(EXAMPLE, folder)
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_taps_are_the_hidden_states_after_their_layers(tmp_path: Path) -> None:
    """Of all rows, before the final norm. A tap that is off by one layer would show in no text, only as low acceptance."""
    path = make_checkpoint("qwen3", tmp_path, tokenizer=False)
    rig, ids = Rig(path), list(range(30, 51))
    batch = rig.batch([(Seq(1, ids, len(ids)), len(ids))]).map(torch.from_numpy)
    taps: dict[int, Any] = {0: None, 1: None}
    last, _ = rig.model.forward(rig.params, batch, rig.box.value["kv"], taps=taps)
    with torch.no_grad():
        known = load_reference(path, torch.float32)(torch.tensor([ids]), output_hidden_states=True).hidden_states
    torch.testing.assert_close(taps[0], known[1][0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(rig.model._norm(rig.params["norm"], taps[1]), last)


def test_a_proposer_changes_no_text_and_saves_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here steps are recorded, and prompts end in chunks."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setitem(drafters._LIST._local, "successor", "thalweg_drafter:SuccessorDrafter")
    monkeypatch.setattr(Gain, "allows", lambda self, streams: True)  # whatever this machine's clock says
    said = []
    for asked in (None, {"method": "successor", "num_speculative_tokens": 3}):
        llm = LLM(
            device="cpu", dtype="float32", max_model_len=128, max_num_seqs=2, max_num_batched_tokens=16, seed=0,
            speculative_config=asked, use_tqdm_on_load=False,
        )  # fmt: skip
        try:
            prompts = ["one two three one two three one two", "a b c d a b c d a b", "12 + 30 ="]
            params = [SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.3 * (i % 2), seed=i) for i in range(3)]
            texts = [list(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False)]
            said.append((texts, llm.stats()))
        finally:
            llm.shutdown()
    (text, plain), (same, stats) = said
    assert same == text
    assert stats.draft_tokens > stats.accepted_tokens > 10
    assert stats.steps < plain.steps


@pytest.mark.slow
@pytest.mark.parametrize("devices", [("cpu",), ("reference", HOST)])
def test_an_installed_drafter_is_found_by_name_on_every_device(devices, tmp_path) -> None:
    said = run(tmp_path, *devices)
    assert "successor_buckets: must be a whole number from 16" in said["refused"]
    for device in devices:
        (text, _, none, steps), (same, accepted, drafted, fewer) = said[device]
        assert same == text, device
        assert none == 0
        assert drafted > accepted > 20, device
        assert fewer < steps, device


def test_it_is_small() -> None:
    files = [f for f in EXAMPLE.rglob("*.py") if "build" not in f.parts]
    assert sum(len(f.read_text().splitlines()) for f in files) <= MOST_LINES
