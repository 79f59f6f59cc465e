"""OpenAI's Codex: its shell as a function, and as text in a namespace."""

from __future__ import annotations

from clients.client import ASK, COMMAND, Call, Client, Script

CODE = f'const r = await tools.exec_command({{cmd: "{COMMAND}"}}); text(r);'
PROVIDER = 'model_providers.local={{name="local",base_url="{url}/v1",env_key="OPENAI_API_KEY",wire_api="responses"}}'


def _words(url: str, model: str) -> list[str]:
    words = ["codex", "exec", "--skip-git-repo-check", "-s", "danger-full-access", "-m", model, "-c", "model_provider=local"]
    return [*words, "-c", PROVIDER.format(url=url), ASK]


def _environment(url: str, model: str) -> dict[str, str]:
    return {"OPENAI_API_KEY": "none"}


def _client(name: str, call: Call, model: str = "fake") -> Client:
    script = Script(first=((call,),))
    return Client(name, "codex", "program", _words, environment=_environment, model=model, script=script, once=False)


CLIENTS = (
    _client("codex", Call("exec_command", {"cmd": COMMAND})),
    # Its tools come as an item, in namespaces, and accept text.
    _client("codex-new", Call("functions__exec", {"input": CODE}), "gpt-5.6-sol"),
)
