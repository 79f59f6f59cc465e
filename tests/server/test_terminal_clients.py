"""`thalweg chat` and `thalweg complete` with --url, against a server."""

from __future__ import annotations

import io
import sys

import pytest

from thalweg.cli import main


@pytest.fixture
def typed(monkeypatch):
    """typed(text): what standard input holds."""
    return lambda text: monkeypatch.setattr(sys, "stdin", io.StringIO(text))


@pytest.mark.parametrize("command", ["chat", "complete"])
def test_one_text_and_several_are_answered_by_a_running_server(start, capsys, typed, command):
    url = start(disable_uvicorn_access_log=True).url
    words = [command, "--url", url, "--max-tokens", "4"]
    assert main([*words, "-q", "hello"]) == 0
    once = capsys.readouterr().out
    assert once.strip()
    typed("hello\n\nhello\n")
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0] == once.strip("\n")
    assert (lines[1] == lines[0]) is (command == "complete")  # a conversation has grown


def test_what_the_server_refuses_is_told_and_the_next_message_is_answered(start, capsys, typed):
    url = start(disable_uvicorn_access_log=True).url
    typed("x" * 100_000 + "\nhello\n")
    assert main(["chat", "--url", url, "--max-tokens", "4"]) == 0
    out = capsys.readouterr()
    assert "the server says" in out.err
    assert len(out.out.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["complete", "--api-key", "x"], "--api-key"),
        (["complete", "model", "--url", "http://localhost:1/v1"], "MODEL"),
        (["chat", "--url", "http://localhost:1", "--reasoning-parser", "qwen3"], "--reasoning-parser"),
        (["chat", "--tools", "/no/such/file"], "--tools"),
        (["complete", "--temperature", "-1"], "--temperature"),
        (["run-batch"], "--input-file: must be given"),
        (["run-batch", "-i", "https://x/y", "-o", "z"], "download it first"),
        (["run-batch", "-i", "/no/such/file", "-o", "z"], "--input-file: no file"),
        (["run-batch", "-i", __file__, "-o", "/no/such/place/z"], "--output-file: no directory"),
        (["run-batch", "-i", __file__, "-o", __file__], "--output-file: it is the input"),
        (["run-batch", "-i", __file__, "-o", "z", "--port", "9"], "--port: is for a server"),
        (["run-batch", "-i", __file__, "-o", "z", "--enable-metrics"], "--enable-metrics"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(capsys, words, said):
    assert main(words) == 2
    assert said in capsys.readouterr().err
