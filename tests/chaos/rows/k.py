"""K: who may ask, and what is told. Keys on every route but the probes; no secret, path or trace in any answer or log."""

from __future__ import annotations

import base64
import getpass
import json
import os
import platform
import re
import secrets
import signal
import time
from typing import Any

import uvicorn
from chaosrig import proc
from chaosrig.audited import audit
from chaosrig.context import Context, Row
from chaosrig.http import Answer, ask, raw, split
from chaosrig.load import draw, play, together
from chaosrig.server import Server
from chaosrig.table import Figure, exactly, none_of

import thalweg
from rows.f import _smuggling
from rows.g import BASE, CHAT, COMPLETIONS, _raw

PROBES = ("/livez", "/readyz", "/health", "/ping")
FORBIDDEN = ("pickle.find_class", "marshal.loads", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn",
             "os.fork", "os.forkpty", "pty.spawn")  # fmt: skip


def _key(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def _routes(server: Server, key: str) -> list[tuple[str, str]]:
    """Every documented (method, path), and what a server may have without documenting it."""
    paths = (await ask(server.port, "GET", "/openapi.json", headers=_key(key))).json()["paths"]
    known = [(m.upper(), p.replace("{name}", "thalweg-nano")) for p, methods in paths.items() for m in methods]
    hidden = [("GET", p) for p in ("/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect", "/metrics", "/nowhere", "/",
                                   "//v1/models", "/v1//models", "/v1/models/", "/v1/../v1/models", "/v1/%6dodels",
                                   "/health/../v1/models", "/livez/../v1/models", "/health/", "/LIVEZ", "/livez/x",
                                   "/livez;x", "/debug", "/start_profile", "/sleep", "/v1/models?key=x",
                                   "/readyz/../metrics")]  # fmt: skip
    others = [("HEAD", "/v1/models"), ("PUT", "/v1/models"), ("DELETE", "/v1/models"), ("TRACE", "/v1/models"),
              ("POST", "/v1/embeddings"), ("POST", "/reset_prefix_cache"), ("POST", "/pause")]  # fmt: skip
    return [*known, *hidden, *others]


async def k1(ctx: Context) -> list[Figure]:
    """K1 and K11: every route without a key, with a wrong one, and with the right one."""
    key = secrets.token_urlsafe(16)
    wrong: list[dict[str, str] | None] = [None, _key("wrong"), _key(key[:-1]), _key(key + "x"), {"X-Api-Key": key[:-1]}]
    opened, kept, docs, n = [], [], [], 0
    async with Server(env={"THALWEG_API_KEY": key}) as server:
        routes = await _routes(server, key)
        for method, path in routes:
            body = BASE.get(path, {"prompt": "a"}) if method == "POST" else None
            for headers in wrong:
                answer = await ask(server.port, method, path, body, headers, timeout=5)
                n += 1
                plain = path.rstrip("/").split("?")[0]
                if answer.status != 401 and plain not in PROBES and not (answer.status == 404 and path.lower() != path):
                    opened.append(f"{method} {path}: {answer.status or answer.error}")
                    if plain in ("/metrics", "/docs", "/redoc", "/openapi.json"):
                        docs.append(f"{path}: {answer.status}")
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "YQ=="}
        for path in ("/v1/realtime", "/ws", "/v1/completions"):
            answer = await ask(server.port, "GET", path, None, upgrade, timeout=5)
            n += 1
            if answer.status not in (400, 401):
                opened.append(f"websocket {path}: {answer.status or answer.error}")
        for path in (COMPLETIONS, CHAT):
            for right in (_key(key), {"X-Api-Key": key}):
                answer = await ask(server.port, "POST", path, BASE[path], right)
                if answer.status != 200:
                    kept.append(f"{path} with {', '.join(right)}: {answer.status}")
        probes = [p for p in PROBES[:2] if (await ask(server.port, "GET", p)).status != 200]
    return [
        none_of("K1", "routes open without the right key", opened, n),
        none_of("K1", "closed with the right key", kept, 4),
        none_of("K1", "probes that do not answer 200 without a key", probes, 2),
        none_of("K11", "metrics and docs open", docs, 4 * len(wrong)),
    ]


async def k2(ctx: Context) -> list[Figure]:
    """Keys in odd forms."""
    key = secrets.token_urlsafe(16)
    basic = base64.b64encode(f"{key}:".encode()).decode()
    cases: dict[str, str | None] = {
        "missing": None,
        "empty": "",
        "Bearer only": "Bearer",
        "Bearer and a space": "Bearer ",
        "no scheme": key,
        "Basic": f"Basic {basic}",
        "doubled": f"Bearer Bearer {key}",
        "swapped case": f"Bearer {key.swapcase()}x",
        "quoted": f'Bearer "{key}"',
        "with a comma": f"Bearer {key}, Bearer {key}",
        "non-ASCII": "Bearer schl\xfcssel",
        "bytes": "Bearer \xff\xfe",
        "NUL": f"Bearer {key}\0",
        "tab": "Bearer\twrong",
        "10 KB": "Bearer " + "a" * 10_000,
        "1 MB": "Bearer " + "a" * 2**20,
        "null": "Bearer null",
        "percent": "Bearer %00",
    }
    odd = []
    async with Server(env={"THALWEG_API_KEY": key}) as server:
        for name, value in cases.items():
            line = b"" if value is None else b"Authorization: " + value.encode("latin-1") + b"\r\n"
            said, how = await raw(
                server.port, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + line + b"\r\n"
            )
            status = (split(said) or [Answer()])[0].status
            # What is no header at all is a framing error before it is a key.
            wanted = (401, 400, 431) if name in ("NUL", "1 MB", "10 KB") else (401,)
            if status not in wanted and not (name == "1 MB" and how == "reset"):
                odd.append(f"{name}: {status} {how}")
        two = f"Authorization: Bearer {key}\r\nAuthorization: Bearer wrong\r\n"
        said, _ = await raw(
            server.port, f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{two}\r\n".encode()
        )
        if (split(said) or [Answer()])[0].status not in (400, 401):
            odd.append("two headers")
        for path in (f"/v1/models?api_key={key}", f"/v1/models?token={key}", f"/v1/models?authorization=Bearer%20{key}"):
            answer = await ask(server.port, "GET", path)
            if answer.status != 401:
                odd.append(f"{path.partition('=')[0]}: {answer.status}")
        right = await ask(server.port, "GET", "/v1/models", headers=_key(key))
    return [none_of("K2", "other answers than 401", odd, len(cases) + 4), exactly("K2", "with the key", 200, right.status, 1)]


async def k9(ctx: Context) -> list[Figure]:
    """Sentinels in key, token, environment, prompt and a wrong key: none comes out anywhere."""
    made = {name: f"sentinel-{name}-{secrets.token_hex(8)}" for name in ("key", "token", "env", "prompt", "wrong")}
    env = {"THALWEG_API_KEY": made["key"], "HF_TOKEN": made["token"], "SECRET_OF_THE_HOST": made["env"]}
    told: dict[str, bytes] = {}
    async with Server(env=env) as server:
        for i, answer in enumerate(await _provoked(server.port, _key(made["key"]), made["prompt"])):
            told[f"answer {i}"] = b"" if answer.status == 200 else answer.body + repr(answer.headers).encode()
        for i, headers in enumerate((None, _key(made["wrong"]))):
            told[f"401 {i}"] = (await ask(server.port, "GET", "/v1/models", headers=headers)).body
        told["metrics"] = (await ask(server.port, "GET", "/metrics", headers=_key(made["key"]))).body
        for pid in server.processes():
            told[f"cmdline {pid}"] = proc.cmdline(pid).encode()
        engine = await server.next_engine(None)
        os.kill(engine, signal.SIGKILL)
        await server.next_engine(engine)
        await server.ready()
        told["log"] = server.log().encode()
        for path in server.tmp.rglob("*"):
            if path.is_file():
                told[str(path)] = path.read_bytes()
    found = [f"{name} in {place}" for place, text in told.items() for name, value in made.items() if value.encode() in text]
    return [none_of("K9", "sentinels found", found, len(told))]


async def _provoked(port: int, headers: dict[str, str], word: str) -> list[Answer]:
    """Answers, most of them errors, to bodies of many kinds that hold `word`."""
    bodies: list[tuple[str, Any]] = [
        (COMPLETIONS, {"prompt": word, "max_tokens": 1}),
        (CHAT, {"messages": [{"role": "user", "content": word}], "max_tokens": 1}),
        (COMPLETIONS, {"prompt": word * 3000, "max_tokens": 1}),
        (COMPLETIONS, {"prompt": word, "max_tokens": -1}),
        (COMPLETIONS, {"prompt": {"a": word}, "max_tokens": 1}),
        (COMPLETIONS, {"prompt": [word, 1], "max_tokens": 1}),
        (COMPLETIONS, {"prompt": "a", "stop": {"a": word}}),
        (COMPLETIONS, {"prompt": "a", "logit_bias": {word[:12]: "x"}}),
        (COMPLETIONS, ('{"prompt": "' + word).encode()),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": word}}]}]}),
        (CHAT, {"messages": [{"role": "user", "content": "a"}], "chat_template": "{{ " + word.replace("-", "_") + "() }}"}),
        (CHAT, {"messages": [{"role": "tool", "content": word}], "tools": []}),
        (CHAT, {"messages": word}),
        ("/tokenize", {"prompt": word}),
        ("/detokenize", {"tokens": [word]}),
        ("/detokenize", {"tokens": [2**31 - 1]}),
    ]
    return [await ask(port, "POST", path, body, headers) for path, body in bodies]


LEAKS = {
    "path": rb"/(root|home|usr|opt|tmp|var|etc|proc)/|site-packages|[\w/]+\.py\b",
    "address in memory": rb"0x[0-9a-f]{6,}",
    "trace": rb"Traceback|File \"|line \d+, in ",
    "exception class": rb"\b[A-Z]\w+(Exception|Error): ",
}


async def k10(ctx: Context) -> list[Figure]:
    """What error answers hold: no path, address, trace, version or user name."""
    versions = (thalweg.__version__, uvicorn.__version__, platform.python_version())
    words = {f"version {v}": re.escape(v).encode() for v in versions}
    words["user name"] = rb"\b" + re.escape(getpass.getuser()).encode() + rb"\b"
    async with Server() as server:
        answers = await _provoked(server.port, {}, "word")
        for field in ("temperature", "max_tokens", "logit_bias", "stop", "prompt", "model", "n", "metadata", "stream_options"):
            for value in ("NaN", "1e999", '"\\ud800"', "[[[]]]", '{"a":', "null", "true", '"' + "a" * 70000 + '"'):
                answers.append(await ask(server.port, "POST", COMPLETIONS, _raw(BASE[COMPLETIONS], field, value)))
        for data in _smuggling().values():
            answers += split((await raw(server.port, data, timeout=1, until_answer=True))[0])
        for path in ("/nowhere", "/v1/models/%00", "/v1/models/../../a", "/v1/models/" + "a" * 3000):
            answers.append(await ask(server.port, "GET", path))
    errors = [a for a in answers if a.status >= 400]
    found = []
    for a in errors:
        text = a.body + json.dumps(a.headers).encode()
        for what, pattern in (LEAKS | words).items():
            if hit := re.search(pattern, text):
                found.append(f"{what}: {hit[0].decode(errors='replace')!r} in a {a.status}: {a.body[:100]!r}")
    fives = [f"{a.status} {a.body[:80]!r}" for a in errors if a.status >= 500 and a.status not in (501, 505)]
    return [none_of("K10", "hits", found, len(errors)), none_of("K10", "5xx", fives, len(errors))]


async def k12(ctx: Context) -> list[Figure]:
    """Events a serving process must not cause, recorded by an audit hook in each of its Python processes."""
    rng = ctx.rng("K12")
    with audit() as record:
        async with Server(env=record.env) as server:
            await _every_kind(server, rng)  # what is loaded or started on first use
            await server.stands_by()
            since = time.monotonic()
            for _ in range(ctx.size(3, 30)):
                await _every_kind(server, rng)
            listening = [e for e in record.events() if e.name == "socket.bind" and "127.0.0.1" in e.what]
        events = record.events()
    after = [e for e in events if e.when >= since]
    bad = [f"{e.name} {e.what[:80]}" for e in after if e.name in FORBIDDEN]
    unpickled = [e.what for e in events if e.name == "pickle.find_class"]
    outside = [e.what for e in after if e.name == "socket.connect" and "127.0.0.1" not in e.what and "engine" not in e.what]
    return [
        exactly("K12", "the hook sees events", True, len(events) > 0, len(events)),
        none_of("K12", "forbidden events after the start", bad, len(after)),
        none_of("K12", "unpickling at any time", unpickled, len(events)),
        none_of("K12", "connections to others", outside, len(after)),
        exactly("K12", "TCP listeners", 1, len(listening), len(events), str([e.what for e in listening])),
    ]


async def _every_kind(server: Server, rng: Any) -> None:
    await _provoked(server.port, {}, "word")
    await together(server.port, [draw(rng, 10) for _ in range(8)])
    await play(server.port, draw(rng, 200), abort_after=3)
    await ask(server.port, "POST", COMPLETIONS, {**BASE[COMPLETIONS], "logprobs": 3, "n": 2, "seed": 1, "stop": ["a"]})
    for path in ("/health", "/metrics", "/v1/models", "/version", "/openapi.json", "/docs", "/nowhere", "/livez", "/readyz"):
        await ask(server.port, "GET", path)


ROWS = (
    Row(("K1", "K11"), k1, alone=False),
    Row(("K2",), k2, alone=False),
    Row(("K9",), k9, alone=False),
    Row(("K10",), k10, alone=False),
    Row(("K12",), k12, alone=False),
)
