"""Instructor, a row for each of its modes on the three dialects.

Its object has a validator that refuses the first answer. So a row needs the request, the history with the refused answer, and
the next answer. The model would rather talk: only a constraint makes it call or write JSON, unless the mode leaves it free.
"""

from __future__ import annotations

import json

from clients.client import ANSWER, ASK, COMMAND, TALK, Call, Client, Saying, Script

REFUSED = {"words": "One moment.", "number": 41}
"""What the validator refuses."""


def _code(value: object) -> str:
    return f"```json\n{json.dumps(value)}\n```"


def _script(first: Saying, last: tuple[Saying, ...], *rather: Saying) -> Script:
    return Script((*rather, first), (*rather, *last), (*rather, first))


REPORT = ((Call("Report", ANSWER),), (Call("PartialReport", ANSWER),))
"""A streamed object has a tool by another name."""
FORCED = _script((Call("Report", REFUSED),), REPORT, TALK, json.dumps(ANSWER))
PARALLEL = _script((Call("Report", ANSWER), Call("Command", {"command": COMMAND})), REPORT[:1])
HELD = _script(json.dumps(REFUSED), (json.dumps(ANSWER),), TALK, *REPORT)
FREE = _script(json.dumps(REFUSED), (json.dumps(ANSWER),))
FREE_CODE = _script(_code(REFUSED), (_code(ANSWER),))

MODES: dict[str, dict[str, Script]] = {
    "openai": {
        "TOOLS": FORCED,
        "TOOLS_STRICT": FORCED,
        "PARALLEL_TOOLS": PARALLEL,
        "JSON": HELD,
        "JSON_SCHEMA": HELD,
        "MD_JSON": FREE_CODE,
        "RESPONSES_TOOLS": FORCED,
        "RESPONSES_TOOLS_WITH_INBUILT_TOOLS": FORCED,
    },
    # With an SDK that has no output_format, JSON_SCHEMA asks in words as JSON does.
    "anthropic": {"TOOLS": FORCED, "PARALLEL_TOOLS": PARALLEL, "JSON": FREE, "JSON_SCHEMA": FREE},
    # Its TOOLS ask in words too.
    "cohere": {"TOOLS": FREE, "JSON_SCHEMA": HELD, "MD_JSON": FREE_CODE},
}
"""Instructor 1.17, by provider. OpenAI's TOOLS_STRICT and RESPONSES_TOOLS_WITH_INBUILT_TOOLS are kept as older names."""


def _client(provider: str, mode: str, script: Script) -> Client:
    short = "instructor" if provider == "openai" else f"instructor-{provider}"
    return Client(
        f"{short}-{mode.lower().replace('_', '-')}",
        "instructor",
        "python",
        lambda url, model: ["run_instructor.py", url, model, ASK, provider, mode],
        ("instructor", provider),
        script=script,
        nano=False,
    )


CLIENTS = tuple(_client(p, mode, script) for p, modes in MODES.items() for mode, script in modes.items())
