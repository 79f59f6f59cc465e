"""Text of answers for the log (--enable-log-outputs), collected from passing outputs."""

from __future__ import annotations

import logging

from thalweg.outputs import CompletionOutput, RequestOutput
from thalweg.params import RequestOutputKind, SamplingParams

log = logging.getLogger(__name__)


class Transcript:
    """The choices of one prompt."""

    def __init__(self, params: SamplingParams, id: str = "", pieces: bool = False, most: int | None = None) -> None:
        """pieces: log streamed text at once, `most` characters of each piece."""
        self._id, self._most = id, most
        self._delta = params.output_kind is RequestOutputKind.DELTA
        self._pieces = pieces and self._delta
        self._texts: dict[int, list[str]] = {}
        self._tokens: dict[int, int] = {}
        self._ended: dict[int, str] = {}

    def add(self, output: RequestOutput) -> None:
        for choice in output.outputs:
            self._add(choice)

    def _add(self, choice: CompletionOutput) -> None:
        i = choice.index
        if not self._delta:
            self._texts[i], self._tokens[i] = [], 0
        if self._pieces and choice.text:
            log.info("answer %s choice %d goes on: %r", self._id, i, choice.text[: self._most])
        self._texts.setdefault(i, []).append(choice.text)
        self._tokens[i] = self._tokens.get(i, 0) + len(choice.token_ids)
        if choice.finish_reason is not None:
            self._ended[i] = choice.finish_reason

    def tell(self, id: str, most: int | None) -> None:
        """A line for each choice: `most` characters of its text at most. One that did not end was left by its client."""
        for i in sorted(self._texts):
            text = "".join(self._texts[i])[:most]
            log.info("answer %s choice %d: %d tokens, %s, %r", id, i, self._tokens[i], self._ended.get(i, "left"), text)
