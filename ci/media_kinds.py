"""A kind of media is a row and a file of thalweg/media/kinds. This finds code elsewhere in the engine and the server that names
one: a string or a name with the word image, audio, sound or video in it. Documentation may.

Prints the places and how many each room has. Fails where a room has more than its limit.
Run: python ci/media_kinds.py [REPOSITORY]
"""

from __future__ import annotations

import ast
import gc
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from source import Finding, Source, sources

ROOT = Path(__file__).parents[1]
LIMITS = {"thalweg/engine/control": 0, "thalweg/engine": 9, "thalweg/server": 62}
"""Places that a room may have. Rooms within others come first."""
HOMES = ("thalweg/engine/client/transcription.py", "thalweg/server/audio/")
"""Files of one kind: prompts of speech models, and the routes of transcripts."""
WORD = re.compile(r"(?<![a-z])(image|audio|sound|video)s?(?![a-z])", re.IGNORECASE)
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def check(source: Source) -> Iterator[Finding]:
    if source.path.startswith(HOMES):
        return
    for node in ast.walk(source.tree):
        for text in () if id(node) in source.docs else _texts(node):
            if found := WORD.search(CAMEL.sub("_", text)):
                yield Finding(source.path, getattr(node, "lineno", 0), f"names {found[0]} in {text!r:.60}")


def _texts(node: ast.AST) -> Iterator[str]:
    """What a node names, or says."""
    match node:
        case ast.Constant(value=str() as text) | ast.Name(id=text) | ast.Attribute(attr=text) | ast.arg(arg=text):
            yield text
        case ast.FunctionDef(name=text) | ast.AsyncFunctionDef(name=text) | ast.ClassDef(name=text):
            yield text
        case ast.keyword(arg=str() as text):
            yield text
        case ast.alias(name=text):
            yield text.rpartition(".")[2]
        case ast.ImportFrom(module=str() as text):
            yield text.rpartition(".")[2]


def count(root: Path) -> tuple[list[Finding], Counter[str]]:
    """Every place, and how many each room has."""
    found, rooms = [], Counter[str]()
    for source in sources(root, "thalweg/engine", "thalweg/server"):
        room = next(room for room in LIMITS if source.path.startswith(f"{room}/"))
        mine = list(check(source))
        found += mine
        rooms[room] += len(mine)
    return found, rooms


def main() -> int:
    gc.disable()  # as in source.main
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    found, rooms = count(root)
    for finding in found:
        print(finding)
    for room, limit in LIMITS.items():
        print(f"{room}: {rooms[room]} places name a kind of media; at most {limit} may")
    return 1 if any(rooms[room] > limit for room, limit in LIMITS.items()) else 0


if __name__ == "__main__":
    sys.exit(main())
