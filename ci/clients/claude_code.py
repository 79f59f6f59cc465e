"""Anthropic's Claude Code, on the Messages API."""

from __future__ import annotations

from clients.client import ASK, COMMAND, Call, Client, Script


def _words(url: str, model: str) -> list[str]:
    return ["claude", "-p", ASK, "--model", model, "--allowedTools", "Bash"]


def _environment(url: str, model: str) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_SMALL_FAST_MODEL": model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "512",
    }


SCRIPT = Script(first=((Call("Bash", {"command": COMMAND, "description": "echo"}),),))
CLIENTS = (Client("claude", "claude", "program", _words, environment=_environment, script=SCRIPT, once=False),)
