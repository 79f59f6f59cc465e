"""Real clients against this server, a row each: Codex, Claude Code, OpenCode, the Agents SDK, LangChain, Cohere,
Open WebUI. If installed.

Run: python ci/clients.py [--bin FOLDER] [--python PYTHON] [--only NAME,...] [--nano] [--keep]

Each client is asked to use its shell. The engine behind the server is scripted: it calls the shell, and says that it is
done once the prompt has what the shell printed. So a row is right when the client's tool ran, its result came back in the
prompt, and the client ended well with the text. --nano serves the draft of the bundled model, whose answers say nothing: then a
row is right when the client ends well.

Needs: npm install @openai/codex @anthropic-ai/claude-code opencode-ai in FOLDER/../.. (FOLDER is node_modules/.bin), and a
Python with openai-agents, langchain-openai and cohere. Open WebUI needs an environment of its own, and is run alone:
--only open-webui --bin ENVIRONMENT/bin. Clients get an empty home, a key that opens nothing, and addresses on loopback.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMMAND, MARK, DONE = "echo MARK-$((40+2))", "MARK-42", "Finished with 42."
ASK = "Use your shell tool to run: echo MARK. Then say that you have finished."
TEMPLATE = (
    '{# <tool_call> </tool_call> "arguments": <think> #}{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}'
    "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}\n{% endfor %}<assistant>"
)
AGENT = """
import asyncio, subprocess, sys
from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
set_tracing_disabled(True)

@function_tool
def shell(command: str) -> str:
    "Run a command."
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True).stdout

async def main():
    model = OpenAIResponsesModel(sys.argv[2], AsyncOpenAI(base_url=sys.argv[1] + "/v1", api_key="none"))
    agent = Agent(name="a", instructions="Be brief.", model=model, tools=[] if "--once" in sys.argv else [shell])
    settings = ModelSettings(store=False, max_tokens=200)
    agent = agent.clone(model_settings=settings)
    stream = Runner.run_streamed(agent, sys.argv[3], max_turns=4)
    async for event in stream.stream_events():
        pass
    print(stream.final_output)
    if "--once" not in sys.argv:
        print((await Runner.run(agent, sys.argv[3], max_turns=4)).final_output)

asyncio.run(main())
"""

LANGCHAIN = """
import subprocess, sys
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

def shell(command: str) -> str:
    "Run a command."
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True).stdout

model = ChatOpenAI(model=sys.argv[2], base_url=sys.argv[1] + "/v1", api_key="none", max_tokens=200, stream_usage=True)
messages = [HumanMessage(sys.argv[3])]
if "--once" in sys.argv:
    print(model.invoke(messages).content)
    sys.exit()
bound = model.bind_tools([shell])
said = None
for chunk in bound.stream(messages):  # put together by LangChain's own rules, as LibreChat does
    said = chunk if said is None else said + chunk
assert said.usage_metadata["total_tokens"] > 0, said
messages.append(said)
messages += [ToolMessage(shell(**c["args"]), tool_call_id=c["id"]) for c in said.tool_calls]
whole = bound.invoke(messages).content
streamed = "".join(c.content for c in bound.stream(messages))
assert streamed == whole, (streamed, whole)
print(streamed)
"""

COHERE = """
import json, subprocess, sys
import cohere
client = cohere.ClientV2(base_url=sys.argv[1] + "/cohere", api_key="none")
parameters = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
tools = [{"type": "function", "function": {"name": "shell", "description": "Run", "parameters": parameters}}]
messages = [{"role": "user", "content": sys.argv[3]}]
asked = dict(model=sys.argv[2], messages=messages, max_tokens=200)
if "--once" in sys.argv:
    print(client.chat(**asked).message)
    sys.exit()
first = client.chat(tools=tools, **asked).message
messages.append(first)
for call in first.tool_calls:
    command = json.loads(call.function.arguments)["command"]
    said = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    content = [{"type": "document", "document": {"data": said.stdout}}]
    messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
deltas = [e.delta.message.content for e in client.chat_stream(tools=tools, **asked) if e.type == "content-delta"]
streamed = "".join(d.text or "" for d in deltas)
whole = client.chat(tools=tools, **asked).message
assert streamed == whole.content[-1].text, streamed
print(streamed)
"""


@dataclass(frozen=True)
class Client:
    name: str
    program: str
    tool: str
    """The name of its shell."""
    arguments: dict[str, Any]
    """Of one call of it."""
    command: Callable[[str, str, str], list[str]]
    """Its words, after the program: address, model, folder."""
    environment: Callable[[str, str], dict[str, str]]
    """Address, model."""
    model: str = "fake"
    """By whose name a client may choose its tools."""
    driver: str = ""
    """A file here that runs the program and asks it."""


def _opencode(url: str, model: str) -> dict[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "local",
        "options": {"baseURL": url + "/v1", "apiKey": "none"},
        "models": {model: {"name": model, "limit": {"context": 60000, "output": 4000}}},
    }
    config = {"provider": {"local": provider}, "permission": {"bash": "allow"}, "autoupdate": False, "share": "disabled"}
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}


CODE = f'const r = await tools.exec_command({{cmd: "{COMMAND}"}}); text(r);'
CODEX = 'model_providers.local={{name="local",base_url="{url}/v1",env_key="OPENAI_API_KEY",wire_api="responses"}}'
LONG = (
    *("--hf-overrides", json.dumps({"max_position_embeddings": 65536, "eos_token_id": list(range(2, 2560, 8))})),
    *("--override-generation-config", '{"temperature": 2.0}', "--max-model-len", "65536", "--served-model-name", "nano"),
)
"""That model knows 2,048 positions. Clients need more, where it says nothing of sense and would not end: so many
tokens end it."""


def _codex(url: str, model: str, folder: str) -> list[str]:
    words = ("exec", "--skip-git-repo-check", "-s", "danger-full-access", "-m", model, "-c", "model_provider=local")
    return [*words, "-c", CODEX.format(url=url), ASK]


KEY = {"OPENAI_API_KEY": "none"}
CLIENTS = (
    Client("codex", "codex", "exec_command", {"cmd": COMMAND}, _codex, lambda url, model: KEY),
    Client(  # its tools come as an item, in namespaces, and take text
        "codex-new", "codex", "functions__exec", {"input": CODE}, _codex, lambda url, model: KEY, "gpt-5.6-sol"
    ),
    Client(
        "claude",
        "claude",
        "Bash",
        {"command": COMMAND, "description": "echo"},
        lambda url, model, folder: ["-p", ASK, "--model", model, "--allowedTools", "Bash"],
        lambda url, model: {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "none",
            "ANTHROPIC_SMALL_FAST_MODEL": model,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "512",
        },
    ),
    Client(
        "opencode",
        "opencode",
        "bash",
        {"command": COMMAND, "description": "echo"},
        lambda url, model, folder: ["run", "--model", f"local/{model}", ASK],
        _opencode,
    ),
    Client(
        "agents",
        "",
        "shell",
        {"command": COMMAND},
        lambda url, model, folder: ["-c", AGENT, url, model, ASK],
        lambda url, model: {},
    ),
    Client(
        "langchain",
        "",
        "shell",
        {"command": COMMAND},
        lambda url, model, folder: ["-c", LANGCHAIN, url, model, ASK],
        lambda url, model: {},
    ),
    Client(
        "cohere",
        "",
        "shell",
        {"command": COMMAND},
        lambda url, model, folder: ["-c", COHERE, url, model, ASK],
        lambda url, model: {},
    ),
    Client(
        "open-webui",
        "open-webui",
        "shell",
        {"command": COMMAND},
        lambda url, model, folder: [url, model, ASK],
        lambda url, model: {},
        driver="open_webui.py",
    ),
)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bin", type=Path, help="a folder of programs, such as node_modules/.bin")
    parser.add_argument("--python", help="a Python that has openai-agents, langchain-openai and cohere")
    parser.add_argument("--only", default=",".join(c.name for c in CLIENTS))
    parser.add_argument("--nano", action="store_true", help="serve the bundled model's draft")
    parser.add_argument("--timeout", type=float, default=180)
    parser.add_argument("--keep", action="store_true", help="print what clients say")
    args = parser.parse_args(words)
    wrong = False
    for client in (c for c in CLIENTS if c.name in args.only.split(",")):
        program = args.python if not client.program else _found(client.program, args.bin)
        if program is None:
            print(f"{client.name:10} not installed", flush=True)
            continue
        with _nano() if args.nano else _scripted(client) as server:
            began = time.monotonic()
            why = _run(client, program, server, args)
        print(f"{client.name:10} {time.monotonic() - began:6.1f} s  {why or 'ok'}", flush=True)
        wrong = wrong or bool(why)
    return wrong


def _found(program: str, folder: Path | None) -> str | None:
    return shutil.which(program, path=str(folder.resolve()) if folder else None)


def _run(client: Client, program: str, server: Server, args: argparse.Namespace) -> str:
    """Why it is not right. "": it is."""
    with tempfile.TemporaryDirectory(prefix="clients-", ignore_cleanup_errors=True) as folder:
        home, work = Path(folder) / "home", Path(folder) / "work"
        home.mkdir()
        work.mkdir()
        subprocess.run(["git", "init", "-q"], cwd=work, check=False)
        environment = {"HOME": str(home), "PATH": os.environ["PATH"], "NO_PROXY": "*", "LANG": "C.UTF-8"}
        environment |= client.environment(server.url, server.model)
        words = client.command(server.url, server.model, str(work)) + (["--once"] if args.nano and not client.program else [])
        driver = [sys.executable, str(ROOT / "ci" / client.driver)] if client.driver else []
        process = subprocess.Popen(
            [*driver, program, *words], cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=args.timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            return f"took longer than {args.timeout:.0f} s: {said[-300:]!r}"
    if args.keep:
        print(said)
    return server.judge(process.returncode, re.sub(r"\x1b\[[0-9;]*m", "", said))


@dataclass
class Server:
    url: str
    model: str
    prompts: list[str] | None
    """What a scripted engine was asked. None: a real one."""

    def judge(self, status: int, said: str) -> str:
        if status:
            return f"ended with {status}: {said[-400:]!r}"
        if self.prompts is None:
            return ""
        if not any(MARK in p for p in self.prompts):
            return f"the tool's result never came back, in {len(self.prompts)} requests: {said[-400:]!r}"
        return "" if DONE in said else f"the last text did not arrive: {said[-400:]!r}"


@contextmanager
def _scripted(client: Client) -> Iterator[Server]:
    sys.path[:0] = [str(ROOT / "tests/server"), str(ROOT / "tests/template")]
    from conftest import Running  # type: ignore[import-not-found]
    from fake_engine import FakeEngine, config  # type: ignore[import-not-found]

    from thalweg.outputs import CompletionOutput, RequestOutput
    from thalweg.params import RequestOutputKind
    from thalweg.server.settings import ServerSettings

    call = json.dumps({"name": client.tool, "arguments": client.arguments})
    prompts: list[str] = []

    class Engine(FakeEngine):  # type: ignore[misc]
        async def _tokens(self, ids: list[int], p: Any, request_id: str, first: int) -> AsyncGenerator[RequestOutput, None]:
            prompt = bytes(ids).decode()
            prompts.append(prompt)
            text = f"<think>\nI will.\n</think>\n\nOne moment.\n<tool_call>\n{call}\n</tool_call>"
            if MARK in prompt:
                text = f"<think>\nIt ran.\n</think>\n\n{DONE}"
            elif "<tools>" not in prompt:
                text = '{"title": "A title"}' if '"title"' in prompt else "A title"
            size = 7 if p.output_kind is RequestOutputKind.DELTA else len(text)
            for at in range(0, len(text), size):
                last = at + size >= len(text)
                piece = text[at : at + size]
                choice = CompletionOutput(0, piece, list(piece.encode()), finish_reason="stop" if last else None)
                yield RequestOutput(request_id, None, ids, None, [choice], last, num_cached_tokens=0)

    engine = Engine(template=TEMPLATE, names=(client.model,))
    engine.config = config(max_len=400_000)
    running = Running(engine, ServerSettings(uvicorn_log_level="warning", disable_uvicorn_access_log=True))
    try:
        yield Server(running.url, client.model, prompts)
    finally:
        running.stop()


@contextmanager
def _nano() -> Iterator[Server]:
    """`thalweg serve` on a free port."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "thalweg", "serve", str(ROOT / "thalweg/nano/draft"), "--port", str(port), *LONG]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait(port, process)
            yield Server(f"http://127.0.0.1:{port}", "nano", None)
        finally:
            process.terminate()
            process.wait(60)


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    from urllib.error import URLError
    from urllib.request import urlopen

    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.1)
    raise SystemExit("the server did not start")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
