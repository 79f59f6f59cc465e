"""G: request bodies. Numbers out of range, deep nesting, double keys, broken text, quantities: a fast 400 that says where."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from chaosrig import proc
from chaosrig.context import Context, Row
from chaosrig.http import Answer, ask
from chaosrig.load import draw, play
from chaosrig.server import Server
from chaosrig.table import Figure, at_most, exactly, none_of, percentile

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BASE = {
    COMPLETIONS: {"prompt": [400], "max_tokens": 1},
    CHAT: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
}
EXTREMES = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" + "0" * 400, str(2**64), "true", '"x"', "[]", "{}")
NO_JSON = ("NaN", "Infinity", "-Infinity")
FRACTIONS = ("1.5", "-0.5")
"""Wrong for integers only."""


def _raw(base: dict[str, Any], field: str, value: str) -> bytes:
    """`base` with `field` set to JSON text that need not be JSON."""
    rest = {k: v for k, v in base.items() if k != field}
    return (json.dumps(rest)[:-1] + ("," if rest else "") + f"{json.dumps(field)}:{value}}}").encode()


async def _schema(server: Server) -> dict[str, dict[str, Any]]:
    """Per route, the properties of its body, as the server documents them."""
    document = (await ask(server.port, "GET", "/openapi.json")).json()
    return {
        route: document["paths"][route]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
        for route in (COMPLETIONS, CHAT)
    }


def _numeric(properties: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(field, "integer" or "number") of each field that takes a plain number."""
    for name, form in properties.items():
        kinds = {f.get("type") for f in (form, *form.get("anyOf", ()))}
        for kind in ("number", "integer"):
            if kind in kinds:
                yield name, kind
                break


def _says_where(answer: Answer, field: str, value: str) -> bool:
    """Does the answer name the field? Of text that is no JSON at all a position will do."""
    said = f"{answer.message()} {answer.json()['error'].get('param')}"
    return field in said or (value in NO_JSON and ("JSON" in said and any(c.isdigit() for c in said)))


async def g3(ctx: Context) -> list[Figure]:
    """Every numeric field of both routes."""
    accepted, nameless, other, tried, fields = [], [], [], 0, 0
    async with Server() as server:
        for route, properties in (await _schema(server)).items():
            numeric = dict(_numeric(properties))
            fields += len(numeric)
            for field, kind in numeric.items():
                for value in (*EXTREMES, *(FRACTIONS if kind == "integer" else ())):
                    if value == str(2**64) and kind == "number":
                        continue  # 1.8e19 may be a number like another
                    answer = await ask(server.port, "POST", route, _raw(BASE[route], field, value))
                    tried += 1
                    case = f"{route} {field}={value[:12]}: {answer.status}"
                    if answer.status == 200:
                        accepted.append(case)
                    elif answer.status != 400:
                        other.append(f"{case} {answer.error}")
                    elif not _says_where(answer, field, value):
                        nameless.append(case)
        fine = await play(server.port, draw(ctx.rng("G3"), 4))
    return [
        none_of("G3", "accepted", accepted, tried, f"{fields} fields: " + ", ".join(accepted[:12]) if accepted else ""),
        none_of("G3", "other statuses than 400", other, tried),
        none_of("G3", "400 that does not say where", nameless, tried),
        exactly("G3", "served afterwards", None, fine.broken(), 1),
    ]


def _deep(depth: int) -> dict[str, bytes]:
    lists, objects = "[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth
    chat = BASE[CHAT]
    return {
        "prompt lists": _raw(BASE[COMPLETIONS], "prompt", lists),
        "metadata": _raw(BASE[COMPLETIONS], "metadata", f'{{"a":{objects}}}'),
        "unclosed": _raw(BASE[COMPLETIONS], "prompt", "[" * depth),
        "logit_bias": _raw(BASE[COMPLETIONS], "logit_bias", objects),
        "tools": _raw(chat, "tools", f'[{{"type":"function","function":{{"name":"f","parameters":{objects}}}}}]'),
        "response_format": _raw(chat, "response_format", f'{{"type":"json_schema","json_schema":{objects}}}'),
        "chat_template_kwargs": _raw(chat, "chat_template_kwargs", f'{{"a":{lists}}}'),
        "content": _raw(chat, "messages", f'[{{"role":"user","content":{lists}}}]'),
        "whole body": objects.encode(),
    }


async def g4(ctx: Context) -> list[Figure]:
    """Deep nesting."""
    odd, times, n = [], [], 0
    async with Server() as server:
        for depth in (100, 1000, 10_000, 100_000):
            for name, body in _deep(depth).items():
                route = CHAT if b'"messages"' in body else COMPLETIONS
                best = min([await ask(server.port, "POST", route, body) for _ in range(2)], key=lambda a: a.seconds)
                n += 1
                times.append(1000 * best.seconds)
                if best.status != 400:
                    odd.append(f"{name} depth {depth}: {best.status} {best.error}")
        fine = await play(server.port, draw(ctx.rng("G4"), 4))
    return [
        none_of("G4", "not 400", odd, n),
        at_most("G4", "slowest answer (ms)", 50, max(times), n),
        exactly("G4", "served afterwards", None, fine.broken(), 1),
    ]


async def g5(ctx: Context) -> list[Figure]:
    """Keys given twice."""
    bodies = (
        b'{"prompt":[400],"max_tokens":1,"model":"a","model":"thalweg-nano"}',
        b'{"prompt":[400],"prompt":[401],"max_tokens":1}',
        b'{"prompt":[400],"max_tokens":1,"max_tokens":1}',
        b'{"prompt":[400],"max_tokens":1,"max_\\u0074okens":2}',
        b'{"prompt":[400],"max_tokens":1,"stream":true,"stream_options":{"include_usage":true,"include_usage":false}}',
        b'{"prompt":[400],"max_tokens":1,"logit_bias":{"5":1,"5":2}}',
        b'{"prompt":[400],"max_tokens":1,"metadata":{"a":{"b":1,"b":2}}}',
    )
    async with Server() as server:
        answers = [await ask(server.port, "POST", COMPLETIONS, b) for b in bodies]
    odd = [f"{b.decode()}: {a.status}" for a, b in zip(answers, bodies, strict=True) if a.status != 400]
    return [none_of("G5", "accepted", odd, len(bodies))]


async def g6(ctx: Context) -> list[Figure]:
    """Text that is no UTF-8, or odd Unicode: invalid is a 400, odd is served, nothing is a 5xx."""
    invalid = {
        "lone continuation": b"\x80",
        "lone start": b"\xc3",
        "overlong slash": b"\xc0\xaf",
        "overlong NUL": b"\xe0\x80\x80",
        "surrogate": b"\xed\xa0\x80",
        "beyond U+10FFFF": b"\xf4\x90\x80\x80",
        "FE FF": b"\xfe\xff",
        "five bytes": b"\xf8\x88\x80\x80\x80",
        "escaped lone surrogate": b"\\ud800",
        "escaped reversed pair": b"\\udc00\\ud800",
        "raw NUL": b"\x00",
        "raw newline": b"\n",
    }
    odd = {
        "escaped NUL": b"a\\u0000b",
        "four bytes": "\U0001f600".encode(),
        "right-to-left override": "\u202eabc".encode(),
        "BOM inside": "\ufeffa".encode(),
        "noncharacter": "\uffff".encode(),
        "combining marks": ("a" + "\u0301" * 500).encode(),
        "zero width joiners": ("\u200d" * 500).encode(),
    }
    heavy = {"1 MB of combining marks": ("a" + "\u0301" * 524_288).encode()}
    bad, n = [], 0
    async with Server() as server:
        for group, wanted in ((invalid, (400,)), (odd, (200,)), (heavy, (200, 400, 413))):
            for name, text in group.items():
                for route, body in (
                    (COMPLETIONS, b'{"max_tokens":1,"prompt":"a%bb"}' % text),
                    (CHAT, b'{"max_tokens":1,"messages":[{"role":"user","content":"a%bb"}]}' % text),
                ):
                    answer = await ask(server.port, "POST", route, body)
                    n += 1
                    if answer.status not in wanted:
                        bad.append(f"{route} {name}: {answer.status} {answer.error or answer.message()[:60]}")
        for name, body in (("BOM first", "\ufeff".encode()), ("UTF-16", "\ufeff".encode("utf-16"))):
            answer = await ask(server.port, "POST", COMPLETIONS, body + json.dumps(BASE[COMPLETIONS]).encode())
            n += 1
            if answer.status != 400:
                bad.append(f"{name}: {answer.status}")
    return [none_of("G6", "undefined answers (invalid not 400, valid not 200, any 5xx)", bad, n)]


def _quantities() -> dict[str, tuple[str, dict[str, Any]]]:
    c, m = BASE[COMPLETIONS], BASE[CHAT]
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    return {
        "n": (COMPLETIONS, {**c, "n": 10**6}),
        "best_of": (COMPLETIONS, {**c, "best_of": 10**6}),
        "logprobs": (COMPLETIONS, {**c, "logprobs": 10**6}),
        "prompt_logprobs": (COMPLETIONS, {**c, "prompt_logprobs": 10**6}),
        "top_logprobs": (CHAT, {**m, "logprobs": True, "top_logprobs": 10**6}),
        "max_tokens": (COMPLETIONS, {**c, "max_tokens": 10**12}),
        "stop": (COMPLETIONS, {**c, "stop": [f"s{i}" for i in range(100_000)]}),
        "stop_token_ids": (COMPLETIONS, {**c, "stop_token_ids": list(range(10**6))}),
        "bad_words": (COMPLETIONS, {**c, "bad_words": [f"s{i}" for i in range(100_000)]}),
        "allowed_token_ids": (COMPLETIONS, {**c, "allowed_token_ids": [5] * 10**6}),
        "prompt list": (COMPLETIONS, {**c, "prompt": [[400]] * 100_000}),
        "logit_bias": (COMPLETIONS, {**c, "logit_bias": {str(i): 1 for i in range(10**6)}}),
        "cache_salt": (COMPLETIONS, {**c, "cache_salt": "a" * 10 * 2**20}),
        "user": (COMPLETIONS, {**c, "user": "a" * 10 * 2**20}),
        "metadata": (COMPLETIONS, {**c, "metadata": {str(i): "a" for i in range(100_000)}}),
        "tools": (CHAT, {**m, "tools": [tool] * 10_000}),
        "messages": (CHAT, {**m, "messages": m["messages"] * 10**5 * 4}),
        "content parts": (CHAT, {**m, "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 100_000}]}),
        "unknown fields": (COMPLETIONS, {**c, **{f"x{i}": 1 for i in range(100_000)}}),
    }


async def g7(ctx: Context) -> list[Figure]:
    """Huge quantities."""
    odd, slow, fat, cases = [], [], [], _quantities()
    async with Server() as server:
        for name, (route, fields) in cases.items():
            body = json.dumps(fields).encode()
            await ask(server.port, "POST", route, body)
            proc.forget_peak(server.pid)
            before = proc.peak_rss(server.pid)
            answer = await ask(server.port, "POST", route, body)
            grown = proc.peak_rss(server.pid) - before
            if answer.status not in (400, 413):
                odd.append(f"{name}: {answer.status} {answer.error}")
            slow.append((1000 * answer.seconds, f"{name} ({len(body) / 2**20:.1f} MB) {1000 * answer.seconds:.0f} ms"))
            if grown > 2 * len(body) + 2**20:
                fat.append(f"{name}: {grown / 2**20:.1f} MB for a body of {len(body) / 2**20:.1f} MB")
        fine = await play(server.port, draw(ctx.rng("G7"), 4))
    worst = ", ".join(words for _, words in sorted(slow, reverse=True)[:4])
    return [
        none_of("G7", "not refused", odd, len(cases)),
        at_most("G7", "slowest refusal (ms)", 100, max(t for t, _ in slow), len(cases), note=worst),
        none_of("G7", "peak RSS more than 2x the body (+1 MB)", fat, len(cases)),
        exactly("G7", "served afterwards", None, fine.broken(), 1),
    ]


async def g8(ctx: Context) -> list[Figure]:
    """Token ids no model has."""
    cases: dict[str, Any] = {
        "-1": [-1], "vocabulary": [2560],
        "2^31": [2**31], "2^63": [2**63], "-2^31": [-(2**31)], "empty": [], "empty list": [[]],
        "among good ones": [400, 401, 5000, 402], "second prompt": [[400], [2560]], "float": [1.5], "bool": [True],
        "string": ["400", 1], "10^7 long": [400] * 10**7, "longer than the context": [400] * 2048,
    }  # fmt: skip
    odd, times = [], []
    async with Server() as server:
        engine = server.engine_pid()
        for name, prompt in cases.items():
            answer = await ask(server.port, "POST", COMPLETIONS, {"prompt": prompt, "max_tokens": 1})
            times.append(answer.seconds)
            if answer.status not in (400, 413):
                odd.append(f"{name}: {answer.status} {answer.error}")
        for field, value in (("stop_token_ids", [2560]), ("allowed_token_ids", [-1]), ("logit_bias", {"2560": 1})):
            answer = await ask(server.port, "POST", COMPLETIONS, {**BASE[COMPLETIONS], field: value})
            # A stop id the model never says can do no harm.
            if answer.status != 400 and not (field == "stop_token_ids" and answer.status == 200):
                odd.append(f"{field}: {answer.status} {answer.error}")
        same = server.engine_pid() == engine
        fine: Answer = await ask(server.port, "POST", COMPLETIONS, BASE[COMPLETIONS])
    return [
        none_of("G8", "not refused with 400", odd, len(cases) + 3),
        exactly("G8", "engine restarts", True, same, 1, "the engine's pid changed"),
        exactly("G8", "served afterwards", 200, fine.status, 1, f"p99 {percentile(times, 99):.3f} s"),
    ]


ROWS = (
    Row(("G3",), g3, alone=False),
    Row(("G4",), g4),
    Row(("G5",), g5, alone=False),
    Row(("G6",), g6, alone=False),
    Row(("G7",), g7),
    Row(("G8",), g8, alone=False),
)
