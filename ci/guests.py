"""How many files a guest needs beyond its own: a model family, a checkpoint format, a kind of KV group, a kind of media,
a format or resolver of adapters, a part of a step, an executor, a drafter. Each should be one file and one line of a registry.

A guest is known to another file if that file imports its module, or has its module's name or one of its registered names in a
string. Prints a table. Run: python ci/guests.py [REPOSITORY]
"""

from __future__ import annotations

import ast
import gc
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from source import Source, imports, sources

ROOT = Path(__file__).parents[1]
SIDES = ("thalweg/checkpoint/gguf/architectures/", "thalweg/checkpoint/native", "thalweg/media/processors/",
         "thalweg/media/audio_processors/", "thalweg/media/videos/", "thalweg/media/speakers/")  # fmt: skip
"""Guests' own files in another room: what a GGUF file, or Mistral's, calls a family, and how it differs from that; how
its images and sounds are cut, and how it speaks."""
MOST = 1
"""Files beside its own that may know a guest: the registry."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Guests of one kind."""

    name: str
    folder: str
    registry: str
    """The file that has a line for each."""
    named: bool = False
    """Are their registered names theirs alone? (A format's name is also that of a type.)"""


KINDS = (
    Kind("family", "thalweg/models/families", "thalweg/models/architectures.py", named=True),
    Kind("format", "thalweg/quantization/formats", "thalweg/quantization/registry.py"),
    Kind("KV group", "thalweg/engine/control/cache/groups", "thalweg/engine/control/cache/groups/__init__.py"),
    Kind("adapter format", "thalweg/checkpoint/adapters", "thalweg/checkpoint/adapters/__init__.py"),
    Kind("adapter resolver", "thalweg/server/resolvers", "thalweg/server/resolvers/__init__.py"),
    Kind("KV store", "thalweg/engine/control/store", "thalweg/kv_stores.py"),
    Kind("step part", "thalweg/engine/control/parts", "thalweg/features.py"),
    Kind("executor", "thalweg/engine/executor", "thalweg/executors.py"),
    Kind("drafter", "thalweg/engine/control/speculation", "thalweg/drafters.py"),
    Kind("media", "thalweg/media/kinds", "thalweg/media_kinds.py"),
)


@dataclass(frozen=True, slots=True)
class Guest:
    kind: Kind
    module: str
    """Dotted."""
    names: frozenset[str]
    """Under which it is registered, beside its module."""
    lines: int
    elsewhere: tuple[str, ...]
    """Files that know it, those of its own folder and of `SIDES` left out."""


def guests(root: Path = ROOT) -> Iterator[Guest]:
    read = {s.path: s for s in sources(root, "thalweg")}
    known = {path: _known(s) for path, s in read.items()}
    for kind in KINDS:
        registry = read.get(kind.registry)
        if registry is None:
            continue
        registered = _registered(registry)
        for path, source in read.items():
            module = path.removesuffix(".py").replace("/", ".")
            guest = path.startswith(f"{kind.folder}/") and path != kind.registry and not path.endswith("/base.py")
            if not guest or module not in known[kind.registry]:
                continue  # the rest of a folder is what its guests share
            names = frozenset(n for n, target in registered.items() if kind.named and target == module)
            inside = {p for p in known if p.startswith((f"{kind.folder}/", *SIDES)) and p != kind.registry}
            aware = (p for p, k in known.items() if p not in inside and (module in k or names & k))
            yield Guest(kind, module, names, len(source.text.splitlines()), tuple(sorted(aware)))


def _known(source: Source) -> frozenset[str]:
    """Modules that a file imports, and strings in it that are no documentation."""
    found = {name for _, name in imports(source.tree)}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in source.docs:
            found.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            found.add(_joined(source, node))
    return frozenset(found | {f.partition(":")[0] for f in found if re.fullmatch(r"[\w.]+:\w+", f)})


def _joined(source: Source, node: ast.JoinedStr) -> str:
    """An f-string with the module's own string constants filled in."""
    constants = {
        target.id: s.value.value
        for s in source.tree.body
        if isinstance(s, ast.Assign) and isinstance(s.value, ast.Constant) and isinstance(s.value.value, str)
        for target in s.targets
        if isinstance(target, ast.Name)
    }
    text = ""
    for part in node.values:
        if isinstance(part, ast.Constant):
            text += str(part.value)
        elif isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name):
            text += constants.get(part.value.id, "")
    return text


def _registered(source: Source) -> dict[str, str]:
    """Name -> module, of the tables of "module:attribute" in a registry."""
    found = {}
    for node in ast.walk(source.tree):
        for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
            if isinstance(key, ast.Constant) and isinstance(value, ast.JoinedStr):
                found[str(key.value)] = _joined(source, value).partition(":")[0]
    return found


def main() -> int:
    gc.disable()  # as in source.main
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    found = list(guests(root))
    print(f"{'kind':<15}{'guest':<28}{'lines':>6}{'files elsewhere':>17}")
    for g in found:
        print(f"{g.kind.name:<15}{g.module.rpartition('.')[2]:<28}{g.lines:>6}{len(g.elsewhere):>17}")
        for path in g.elsewhere if len(g.elsewhere) > MOST else ():
            print(f"{'':<10}  {path}")
    over = sum(len(g.elsewhere) > MOST for g in found)
    print(f"guests: {over} of {len(found)} known to more than {MOST} file")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
