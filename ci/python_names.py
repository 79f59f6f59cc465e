"""How many names of vLLM's Python interface this version has: classes, arguments, methods, fields (ci/python_names.json).

python ci/python_names.py              # counts by class
python ci/python_names.py --missing    # and every name that is refused or not there
"""

from __future__ import annotations

import inspect
import json
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from thalweg.compat import as_vllm
from thalweg.config import EngineArgs
from thalweg.engine.planning.arguments import AS_IT_IS, COMPILING, INTERNAL, TRANSLATED
from thalweg.llm import LLM
from thalweg.options.table import table
from thalweg.params import REFUSED_PARAMS, REFUSED_POOLING
from thalweg.prompts import REFUSED_KEYS

HAS, REFUSES, LACKS = "has", "refuses", "lacks"
REFUSED_FIELDS = {"SamplingParams": REFUSED_PARAMS, "PoolingParams": REFUSED_POOLING}


def names() -> Iterator[tuple[str, str, str]]:
    """(class, name, fate) of every name that is asked for. refuses: it is known, and using it says why not and what instead."""
    as_vllm()
    for path, kind, wanted in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")):
        for name in wanted:
            yield path, name, fate(path, kind, name)


def fate(path: str, kind: str, name: str) -> str:
    if kind == "names":
        found = getattr(import_module(path), name, None)
        return LACKS if found is None else REFUSES if hasattr(found, "__refused__") else HAS
    home, _, of = path.rpartition(".")
    cls = getattr(import_module(home), of, None)
    if cls is None:
        return LACKS
    if hasattr(cls, "__refused__"):
        return REFUSES
    if kind == "arguments":
        return _argument(name)
    if kind == "members":
        return _member(cls, name)
    if name in (REFUSED_FIELDS.get(of, ()) if kind == "fields" else REFUSED_KEYS if kind == "keys" else ()):
        return REFUSES
    return HAS if name in _parameters(cls, kind) or inspect.getattr_static(cls, name, None) is not None else LACKS


def _argument(name: str) -> str:
    """Of LLM(...) and EngineArgs(...)."""
    if name in {*EngineArgs.__struct_fields__, *AS_IT_IS, *COMPILING, *TRANSLATED}:
        return HAS
    if name in inspect.signature(LLM.__init__).parameters:
        return HAS
    flag = table().get(name.replace("_", "-"))
    if flag is not None and flag.anyway:
        return HAS
    return REFUSES if name in INTERNAL or flag is not None else LACKS


def _member(cls: type, name: str) -> str:
    found = inspect.getattr_static(cls, name, None)
    if found is None:
        return HAS if name in _parameters(cls, "keys") else LACKS
    return REFUSES if hasattr(found, "__refused__") else HAS


def _parameters(cls: type, kind: str) -> frozenset[str]:
    annotations: set[str] = set()
    for base in (*getattr(cls, "__orig_bases__", ()), *cls.__mro__):
        annotations |= set(getattr(base, "__annotations__", {}))
    if kind == "keys":
        return frozenset(annotations)
    return frozenset(inspect.signature(cls).parameters)


def main(argv: list[str]) -> int:
    every = list(names())
    for path in dict.fromkeys(p for p, _, _ in every):
        fates = Counter(f for p, _, f in every if p == path)
        print(f"{path:48} {fates[HAS]:4} here {fates[REFUSES]:4} refused in words {fates[LACKS]:4} not there")
        for fate_ in (REFUSES, LACKS) if "--missing" in argv else ():
            which = [n for p, n, f in every if p == path and f == fate_]
            if which:
                print(f"    {fate_}: {', '.join(which)}")
    total = Counter(f for _, _, f in every)
    print(f"\n{len(every)} names: {total[HAS]} here, {total[REFUSES]} refused in words, {total[LACKS]} not there")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
