"""The fate of a request's fields: honoured, refused because the answer would differ from the request, or unknown.

Clients send private fields and fields of newer servers. Unknown fields are therefore ignored, logged once by name and never by
value, and counted in a metric. --strict-requests refuses them. A field known to change the answer is never ignored.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar, get_args

from pydantic import BaseModel

from thalweg.server.core.schema import WireModel
from thalweg.server.errors import ApiError

log = logging.getLogger(__name__)
R = TypeVar("R", bound=WireModel)

MOST_NAMES = 64
"""Unknown names logged and counted individually: clients choose them."""
MOST_TOLD = 16
"""Unknown names that an answer's header tells."""
OTHER = "other"
_SPEAKABLE = re.compile(r"[A-Za-z_][\w.\[\]-]{0,63}", re.ASCII)


class RequestParser:
    """Checks the fields of a server's requests. Thread-safe: long bodies are read on a thread."""

    def __init__(self, strict: bool = False, count: Callable[[str], None] = lambda name: None) -> None:
        """strict: refuse unknown fields. count: called with the name of every unknown field, one of a bounded number."""
        self._strict, self._count = strict, count
        self._names: set[str] = set()
        self._lock = threading.Lock()

    def parse(self, kind: type[R], body: dict[str, Any]) -> R:
        """`body` checked as `kind`. ApiError for an unsupported feature. pydantic's ValidationError for the rest."""
        kind.refuse(body)
        unknown = set()
        for path in _unknown(kind, body, ""):
            if self._strict:
                raise ApiError(f"{path[:200]}: unknown field (this server was started with --strict-requests)", path[:200])
            unknown.add(re.sub(r"\[\d+\]", "[]", path))
        names = self._note(unknown)
        result = kind.model_validate(body)
        result._ignored = tuple(sorted(names)[:MOST_TOLD])
        return result

    def _note(self, names: set[str]) -> set[str]:
        reported = {self._metric_label(n) for n in names}
        for name in reported:
            self._count(name)
        return reported

    def _metric_label(self, name: str) -> str:
        """The name to count under. It is logged when it is new."""
        if not _SPEAKABLE.fullmatch(name):
            return OTHER
        with self._lock:
            if name in self._names:
                return name
            if len(self._names) >= MOST_NAMES:
                return OTHER
            self._names.add(name)
            last = len(self._names) == MOST_NAMES
        log.info("request field %s is not known here and is ignored; said once", name)
        if last:
            log.info("%d unknown request fields were named; more are counted only", MOST_NAMES)
        return name


def refuse_asked(
    body: dict[str, Any], table: Mapping[str, tuple[Any, ...]], instead: Mapping[str, str], where: str = ""
) -> None:
    """Remove fields of `table` from `body`. ApiError for one that asks for something.

    table: unsupported fields, each with its values without effect. None always is one. instead: alternatives for some
    fields."""
    for name in table.keys() & body.keys():
        value = body.pop(name)
        if value is None or any(value == v and type(value) is type(v) for v in table[name]):
            continue
        remedy = f"send {instead[name]} instead" if name in instead else "remove it"
        raise ApiError(f"{where}{name} is not supported by this version; {remedy}", where + name)


def _unknown(kind: type[BaseModel], value: dict[str, Any], path: str) -> Iterator[str]:
    """Paths of fields that `kind` and the models within it do not have."""
    nested = _nested_models(kind)
    for name in value:
        if name not in nested:
            yield path + name
    for name, inner in nested.items():
        if inner is None or name not in value:
            continue
        items = value[name]
        if isinstance(items, dict):
            yield from _unknown(inner, items, f"{path}{name}.")
        for i, item in enumerate(items if isinstance(items, list) else ()):
            if isinstance(item, dict):
                yield from _unknown(inner, item, f"{path}{name}[{i}].")


@cache
def _nested_models(kind: type[BaseModel]) -> dict[str, type[BaseModel] | None]:
    """The fields of `kind`, each with its model, single or in a list."""
    return {name: next(_models(field.annotation), None) for name, field in kind.model_fields.items()}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
