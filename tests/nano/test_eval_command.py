"""`thalweg eval nano`: what it asks, whom, and what it prints and refuses."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from thalweg.cli import main
from thalweg.nano.score import held_out

N = 6


class Oracle(BaseHTTPRequestHandler):
    """A server that knows the answers of seed 4; it parses tool calls, and is wrong about every arithmetic prompt."""

    asked: list[dict[str, Any]]
    parses = True
    """False: refuses tools unless told to call none, and leaves calls in the text."""

    def do_GET(self) -> None:
        self._send({"data": [{"id": "oracle"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.append({**body, "key": self.headers.get("Authorization")})
        if body.get("tools") and not self.parses and body.get("tool_choice") != "none":
            self.send_error(400, "no tools here")
            return
        for task in ("arithmetic", "extract_json", "tool_call", "recall"):
            for e in held_out(task, N, 4):
                if list(e.messages) == body["messages"] and list(e.tools) == body.get("tools", []):
                    self._send({"choices": [{"message": self._message(task, e.check, e.answer)}]})
                    return
        self.send_error(404, "never heard of it")

    def _message(self, task: str, check: str, answer: str) -> dict[str, Any]:
        if task == "arithmetic":
            return {"role": "assistant", "content": "many"}
        if check == "call" and self.parses:
            call = json.loads(answer.split("\n")[1])
            function = {"name": call["name"], "arguments": json.dumps(call["arguments"], indent=1)}
            return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}
        return {"role": "assistant", "content": answer}

    def _send(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Oracle.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Oracle)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_a_running_server_is_judged(url, capsys, tmp_path):
    file = tmp_path / "result.json"
    words = ["--tasks", "tool_call,recall", "arithmetic", "extract_json", "--n", str(N), "--seed", "4", "--json", str(file)]
    assert main(["eval", "nano", "--base-url", url, "--api-key", "secret", *words]) == 0
    out = capsys.readouterr().out
    rows = {cells[0].strip(): cells[2].strip() for line in out.splitlines() if len(cells := line.strip("| ").split("|")) == 3}
    assert rows == {
        "task": "right %", "arithmetic": "0.0", "extract_json": "100.0", "tool_call": "100.0", "recall": "100.0",
        "average": "75.0",
    } | {k: v for k, v in rows.items() if k.startswith("-")}  # fmt: skip
    result = json.loads(file.read_text())
    assert (result["model"], result["average"]) == ("oracle", 0.75)
    assert {w["got"] for w in result["tasks"]["arithmetic"]["wrong"]} == {"many"}
    assert len(Oracle.asked) == 4 * N
    assert {(a["model"], a["temperature"], a["key"]) for a in Oracle.asked} == {("oracle", 0, "Bearer secret")}


def test_a_server_without_tool_parsing_is_judged_by_its_text(url, capsys, monkeypatch):
    monkeypatch.setattr(Oracle, "parses", False)
    assert main(["eval", "nano", "--base-url", url, "--tasks", "tool_call", "--n", str(N), "--seed", "4"]) == 0
    assert "100.0" in capsys.readouterr().out
    assert [a.get("tool_choice") for a in Oracle.asked].count("none") == N


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "flying"], "--tasks: unknown flying; supported: chat"),
        (["--base-url", "localhost"], "--base-url: 'localhost' must begin with http"),
        (["--base-url", "http://127.0.0.1:9/v1"], "--base-url: cannot reach http://127.0.0.1:9/v1:"),
        (["--base-url", "http://127.0.0.1:9/"], "--base-url: cannot reach http://127.0.0.1:9/v1:"),
        (["--base-url", "http://127.0.0.1:9/api/"], "--base-url: cannot reach http://127.0.0.1:9/api:"),
        (["--base-url", "http://x/v1", "--dtype", "float32"], "--dtype: is for an engine started here"),
        (["--base-url", "http://x/v1", "model"], "MODEL: with --base-url the server has the model"),
        (["--model-name", "x"], "--model-name: is for --base-url"),
        (["--json", "/no/such/directory/x.json"], "--json: there is no directory /no/such/directory"),
        (["--skip-tokenizer-init"], "--skip-tokenizer-init: the tasks are text"),
    ],
)
def test_what_cannot_be_is_refused_in_words(words, message, capsys):
    assert main(["eval", "nano", *words]) != 0
    assert message in capsys.readouterr().err


def test_a_server_that_errs_is_named(url, capsys):
    assert main(["eval", "nano", "--base-url", url, "--tasks", "copy", "--n", "1"]) == 1
    assert "the server answers 404" in capsys.readouterr().err


@pytest.mark.parametrize("n", ["0", "-1", "many"])
def test_a_number_of_prompts_is_above_zero(n, capsys):
    with pytest.raises(SystemExit):
        main(["eval", "nano", "--n", n])
    assert "--n:" in capsys.readouterr().err


def test_an_unknown_eval_is_refused(capsys):
    assert main(["eval", "mmlu"]) == 2
    assert "eval: there is no mmlu; there are nano" in capsys.readouterr().err


@pytest.mark.nightly
def test_every_format_is_judged_by_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import eval_formats

    rows = ["int8", "W4A16 gptq"]
    said = ["--n", "3", "--tasks", "copy", "sort_words", "--only", *rows, "--json", str(tmp_path / "out.json")]
    assert eval_formats.main(said) in (0, 1)
    found = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [r["format"] for r in found] == ["bf16", *rows]
    assert all(set(r["tasks"]) == {"copy", "sort_words"} for r in found)
    assert 0 < found[-1]["outputs"] < 0.07
    assert "| W4A16 gptq" in capsys.readouterr().out
