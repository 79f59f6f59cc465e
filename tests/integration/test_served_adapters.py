"""`thalweg serve --lora-modules`: adapters are models of their own to clients."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
import torch
from lora_files import ALL, ATTENTION, write_adapter
from zoo import load_reference, make_checkpoint

from thalweg.cli import main

PROMPT = list(b"the same prompt for all")
SIZES = [
    "--max-model-len",
    "128",
    "--max-num-seqs",
    "8",
    "--kv-cache-memory-bytes",
    "4m",
    "--dtype",
    "float32",
    "--device",
    "cpu",
]


def serve(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "thalweg", "serve", *words, *SIZES, "--port", "0", "--threads", "1"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)


def wait_for_url(process: subprocess.Popen[str]) -> str:
    """Where it serves. What else it prints is read, so that it can go on."""
    assert process.stdout is not None
    lines: list[str] = []
    end = time.monotonic() + 90
    for line in iter(process.stdout.readline, ""):
        lines.append(line)
        if (found := re.search(r"serving (.*) on (http://\S+)", line)) or time.monotonic() > end:
            break
    assert found, "".join(lines)
    assert found[1].endswith(", sql, chat")
    threading.Thread(target=process.stdout.read, daemon=True).start()
    return found[2]


@pytest.mark.slow  # starts a process
@torch.inference_mode()
def test_adapters_are_models_of_their_own(tmp_path: Path) -> None:
    base = make_checkpoint("qwen3", tmp_path)
    paths = {
        "sql": write_adapter(base, tmp_path / "sql", 1, 3, ALL),
        "chat": write_adapter(base, tmp_path / "chat", 2, 8, ATTENTION),
    }
    modules = [f"sql={paths['sql']}", f'{{"name": "chat", "path": "{paths["chat"]}", "base_model_name": "mother"}}']
    later = write_adapter(base, tmp_path / "root" / "later", 3, 4, ALL)
    process = serve(
        str(base), "--served-model-name", "base", "--enable-lora", "--enable-lora-routes",
        "--lora-root", str(tmp_path / "root"), "--lora-modules", *modules,
    )  # fmt: skip
    try:
        with httpx.Client(base_url=wait_for_url(process), timeout=60) as http:
            cards = {c["id"]: (c["root"], c["parent"]) for c in http.get("/v1/models").json()["data"]}
            assert cards == {"base": ("base", None), "sql": (str(paths["sql"]), "base"), "chat": (str(paths["chat"]), "mother")}
            answer = http.post("/v1/load_lora_adapter", json={"lora_name": "later", "lora_path": str(later)})
            assert answer.status_code == 200, answer.text
            cards["later"] = paths["later"] = later
            texts = {}
            for name in [*cards, *cards]:
                body = {"model": name, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 0,
                        "return_tokens_as_token_ids": True}  # fmt: skip
                answer = http.post("/v1/completions", json=body).json()
                assert answer["model"] == name
                tokens = [int(t.removeprefix("token_id:")) for t in answer["choices"][0]["logprobs"]["tokens"]]
                path = base if name == "base" else paths[name] / "merged"
                logits = load_reference(path, torch.float32)(torch.tensor([[*PROMPT, *tokens]])).logits[0]
                assert tokens == logits[len(PROMPT) - 1 : -1].argmax(-1).tolist()
                texts[name] = tokens
            assert len(set(map(tuple, texts.values()))) == 4
            assert http.post("/v1/unload_lora_adapter", json={"lora_name": "later"}).status_code == 200
            message = {"model": "sql", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
            assert http.post("/v1/chat/completions", json=message).json()["model"] == "sql"
            shutil.rmtree(paths["chat"])  # it was dropped from host memory when others were used
            lost = http.post("/v1/completions", json={"model": "chat", "prompt": PROMPT})
            assert (lost.status_code, lost.json()["error"]["param"]) == (404, "model")
            assert "missing or have changed" in lost.text
            assert str(tmp_path) not in lost.text
            missing = http.post("/v1/completions", json={"model": "none", "prompt": "a"})
            assert missing.status_code == 404
            assert "base, sql, chat" in missing.text
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lora-modules", "a=/a"], "--lora-modules: adapters need --enable-lora"),
        (["--enable-lora", "--lora-modules", "/a"], "--lora-modules: /a: must be name=path"),
        (["--enable-lora", "--lora-modules", "a=/a", "a=/b"], "two adapters have this name"),
        (["--enable-lora", "--lora-modules", '{"name": "a", "rank": 8}'], "rank: an adapter has name, path"),
        (["--enable-lora", "--lora-modules", '{"name": "a"}'], "lora_path must be text"),
    ],
)
def test_modules_that_say_nothing_useful_are_refused_before_anything_starts(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow  # each starts a process
@pytest.mark.parametrize(
    ("module", "said"),
    [("thalweg-nano=/a", "the model itself has this name"), ("a=/nowhere/at/all", "/nowhere/at/all: does not exist")],
)
def test_a_module_that_cannot_be_served_ends_the_start(module: str, said: str) -> None:
    process = serve("thalweg-nano", "--enable-lora", "--lora-modules", module)
    try:
        out, _ = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode not in (0, None)
    assert said in out
