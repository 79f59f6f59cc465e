"""The example of a backend outside the repository: installed as a package of its own, found, accepted by the kit, served."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from installed import installed

from thalweg import LLM, SamplingParams

EXAMPLE = Path(__file__).parents[2] / "examples" / "backend"
MOST_LINES = 300


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return installed(EXAMPLE, tmp_path_factory.mktemp("example")) | {"PYTHONUNBUFFERED": "1"}


def _run(environment: dict[str, str], *command: str) -> str:
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return done.stdout


def test_it_is_small_enough_to_read() -> None:
    assert sum(len(p.read_text().splitlines()) for p in EXAMPLE.rglob("thalweg_example/*.py")) < MOST_LINES


@pytest.mark.slow
def test_it_is_listed_once_installed_and_not_before(environment: dict[str, str]) -> None:
    listed = {row["platform"]: row for row in json.loads(_run(environment, "thalweg", "backends", "--json"))}
    assert listed["example"]["available"]
    assert not listed["example"]["auto"]
    assert "example" not in _run(dict(os.environ), "thalweg", "backends")


@pytest.mark.slow
@pytest.mark.parametrize("part", ["1/2", pytest.param("2/2", marks=pytest.mark.nightly)])
def test_it_passes_the_conformance_kit(environment: dict[str, str], part: str) -> None:
    kit = ("pytest", "-p", "thalweg.hal.testing.options", "--pyargs", "thalweg.hal.testing", "-p", "no:cacheprovider")
    out = _run(environment, *kit, "--platform=example", "-q", "-rs", "--part", part)
    assert "NumPy has no bfloat16" in out
    assert "copy_blocks" not in out  # a device that moves no blocks is skipped there


@contextmanager
def _server(environment: dict[str, str], *words: str) -> Iterator[str]:
    command = [sys.executable, "-m", "thalweg", "serve", "--port", "0", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        assert process.stdout is not None
        told = []
        for line in process.stdout:
            told.append(line)
            if m := re.search(r"serving .* on (http://\S+)", line):
                yield m[1]
                return
        raise AssertionError("".join(told))
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.slow
def test_it_serves_the_bundled_model_with_the_text_of_the_reference(environment: dict[str, str]) -> None:
    prompt, most = "Once upon a time", 24
    llm = LLM(device="reference", dtype="float32", max_model_len=256)
    try:
        want = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=most), use_tqdm=False)[0].outputs[0].text
    finally:
        llm.shutdown()
    with _server(environment, "--device", "example", "--dtype", "float32", "--max-model-len", "256") as url:
        body = {"model": "thalweg-nano", "prompt": prompt, "temperature": 0, "max_tokens": most}
        request = urllib.request.Request(
            url + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert json.load(reply)["choices"][0]["text"] == want
