"""Kinds of media, a file each. `thalweg.media_kinds` is their list."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from thalweg.checkpoint.config import Config
from thalweg.errors import RequestError
from thalweg.media.kinds.base import MediaKind
from thalweg.media_kinds import MEDIA_KINDS


@cache
def load_kinds() -> Mapping[str, MediaKind]:
    """Those of this repository, then those of installed packages by name. UnsupportedModelError if one cannot be imported."""
    names = [*MEDIA_KINDS.here, *(n for n in MEDIA_KINDS.names() if n not in MEDIA_KINDS.here)]
    return {name: MEDIA_KINDS.load(name) for name in names}


@cache
def map_part_types() -> Mapping[str, MediaKind]:
    """The kind of each type of content part."""
    return {part: kind for kind in load_kinds().values() for part in kind.part_types}


def load_processors(config: Config, path: Path) -> dict[str, Any]:
    """Kind -> processor of the model in this directory. CheckpointError or UnsupportedModelError."""
    found = {name: kind.load_processor(config, path) for name, kind in load_kinds().items()}
    return {name: each for name, each in found.items() if each is not None}


def name_kinds(word: str = "and", *first: str) -> str:
    """Plural names of all kinds, joined by `word`, as "images and audio clips". first: names before them."""
    words = [*first, *(kind.plural for kind in load_kinds().values())]
    return f" {word} ".join([", ".join(words[:-1]), words[-1]] if words[:-1] else words)


def check_request_decoding(given: Mapping[str, Any]) -> None:
    """RequestError for `media_io_kwargs` of a request with an unknown kind, or with settings that a kind does not have."""
    known = [name for name, kind in load_kinds().items() if kind.per_request]
    for name, settings in given.items():
        kind = load_kinds().get(name) if name in known else None
        if kind is None or not isinstance(settings, Mapping):
            words = f"must be an object, not {settings!r:.60}" if kind else f"requests may have settings of {', '.join(known)}"
            raise RequestError(f"media_io_kwargs: {name!r:.40}: {words}", "media_io_kwargs")
        for problem in kind.check_decoding(settings) or ():
            raise RequestError(f"media_io_kwargs: {name}: {problem}", "media_io_kwargs")
