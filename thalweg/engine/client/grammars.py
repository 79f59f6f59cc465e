"""From a request's constraint on its text to a validated grammar. RequestError names the client's own field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from thalweg.errors import RequestError
from thalweg.grammar.judge import GrammarValidator
from thalweg.grammar.source import GrammarError, GrammarRequest, GrammarSource, GrammarVocabulary
from thalweg.params import StructuredOutputsParams

_IN_LARK = re.compile(r"^(?:at \d+\(\d+\): )?(?:failed to compile JSON schema: )?")
MOST_SENT = 64 << 20
"""Characters of a grammar, for all choices of a request together."""


class StructuredOutputs:
    """Validates grammars for one engine. Thread-safe."""

    def __init__(self, vocabulary: Callable[[], GrammarVocabulary], defaults: Mapping[str, Any] | None = None) -> None:
        """vocabulary: raises RequestError if the model can follow no grammar. defaults: --structured-outputs-config."""
        self.judge = GrammarValidator(vocabulary)
        self._defaults = defaults or {}

    def source(self, params: StructuredOutputsParams, choices: int = 1) -> GrammarSource:
        if params.inner is not None:
            self.source(params.inner)  # an error in it names its field
        name, requested = self._read_constraint(params)
        field = params.asked_as or f"structured_outputs.{name}"
        self.judge.vocabulary  # noqa: B018  (it may refuse)
        try:
            source = self.judge.source(requested)
        except GrammarError as e:
            raise self._error_of_part(params, e) or RequestError(f"{field}: {e}", field) from None
        if len(source.text) * choices > MOST_SENT:
            raise RequestError(f"{field}: {len(source.text)} characters for each of {choices} choices; ask for fewer", field)
        if params.free_until:
            source = msgspec.structs.replace(source, free_until=tuple(params.free_until))
        return source

    def _error_of_part(self, params: StructuredOutputsParams, whole: GrammarError) -> RequestError | None:
        """The error of the wrong part. whole: of the grammar, which the client did not write. None: it has no parts."""
        for part in params.parts:
            text = json.dumps(part.schema, ensure_ascii=False)
            try:
                self.judge.source(GrammarRequest(kind="json", text=text, inside=True))
            except GrammarError as e:
                return RequestError(f"{part.name}: {_plain(e.why, e.pointer)}", part.field)
        if not params.parts:
            return None
        name, field = (params.parts[0].name, params.parts[0].field) if len(params.parts) == 1 else ("tools", "tools")
        return RequestError(f"{name}: {_plain(whole.why)}", field)

    def _read_constraint(self, p: StructuredOutputsParams) -> tuple[str, GrammarRequest]:
        name, value = p.constraint
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return name, GrammarRequest(
            kind=name,
            text=text,
            compact=p.disable_any_whitespace or bool(self._defaults.get("disable_any_whitespace")),
            closed=p.disable_additional_properties or bool(self._defaults.get("disable_additional_properties")),
            whitespace=p.whitespace_pattern,
            inner=None if p.inner is None else self._read_constraint(p.inner)[1],
        )

    def close(self) -> None:
        self.judge.close()


def _plain(why: str, pointer: str = "") -> str:
    """A reason without a position in a grammar that the client did not write."""
    why = _IN_LARK.sub("", why)
    return f"{pointer}: {why}" if pointer else why
