"""A row: which program runs, with which words, and what the scripted model wants to say to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

COMMAND, MARK, DONE = "echo MARK-$((40+2))", "MARK-42", "Finished with 42."
ASK = "Use your shell tool to run: echo MARK. Then say that you have finished."
ANSWER = {"words": DONE, "number": 42}
"""The object that clients with a schema ask for, at the end."""
PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Call:
    """A call of a tool."""

    name: str
    arguments: dict[str, Any]


SHELL = Call("shell", {"command": COMMAND})
Saying = str | tuple[Call, ...]
"""One turn: text, or calls of tools."""


@dataclass(frozen=True)
class Script:
    """What the model wants to say, best first. It says the first of them that the request's constraint allows."""

    first: tuple[Saying, ...] = ((SHELL,),)
    """Where the request has tools, and MARK has not come back."""
    last: tuple[Saying, ...] = (DONE, json.dumps(ANSWER))
    """Where MARK is in the prompt."""
    toolless: tuple[Saying, ...] = ()
    """Where the request has no tools, and MARK has not come back. Empty: a title."""


STRICT = Script(first=((Call("shell", {"command": 42}),), (SHELL,)))
"""For a tool that is strict. Where its schema is not held, the model calls it with a number."""
TALK = "I would rather talk."
BROKEN = Script((TALK,), (TALK,), (TALK,))


@dataclass(frozen=True)
class Client:
    name: str
    family: str
    """`--only` accepts it too."""
    kind: Literal["program", "python", "node"]
    """program: `words` begin with a program of --bin. python, node: with a file of `programs`."""
    words: Callable[[str, str], list[str]]
    """(address, model) -> the program and its arguments."""
    needs: tuple[str, ...] = ()
    """Python modules of --python, or packages of node_modules."""
    environment: Callable[[str, str], dict[str, str]] = lambda url, model: {}
    """(address, model) -> variables."""
    model: str = "fake"
    """The served name. Clients choose their tools by it."""
    script: Script = Script()
    driver: str = ""
    """A file of `programs` that runs a program and asks it."""
    once: bool = True
    """Does it accept --once, for a model that calls no tool?"""
    nano: bool = True
    """Can it end well where answers say nothing?"""
