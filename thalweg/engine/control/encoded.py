"""Requests whose result is the vectors of an encoder (`EngineRequest.encode_only`). They enter no step, slot or cache: each
waits for its input's vectors, as prompts do, and ends with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thalweg.engine.control.encodings import Encodings
from thalweg.engine.messages import EngineRequest, SequenceFinished, SequenceStarted, TokenVectors


class EncodedRequests:
    def __init__(self, encodings: Encodings | None, clock: Callable[[], float]) -> None:
        """encodings: None: there is no encoder, and no such request."""
        self._encodings, self._clock = encodings, clock
        self._open: dict[int, tuple[EngineRequest, float]] = {}
        """By handle, with the time when it came."""
        self._found = list[TokenVectors]()
        self._started, self._finished = list[SequenceStarted](), list[SequenceFinished]()

    def __bool__(self) -> bool:
        return bool(self._open)

    def __contains__(self, handle: int) -> bool:
        return handle in self._open

    def refuse(self, request: EngineRequest) -> str | None:
        """Why the request can never run, or None."""
        if len(request.inputs) != 1 or not request.inputs[0].is_encoded:
            return "encode_only: needs one input with an encoder"
        return None

    def add(self, request: EngineRequest) -> None:
        self._open[request.handle] = (request, self._clock())
        self._take(request.handle)

    def abort(self, handle: int) -> None:
        """Unknown handles are ignored."""
        if self._open.pop(handle, None) is not None:
            self._finished.append(SequenceFinished(handle, "abort"))

    @property
    def digests(self) -> set[bytes]:
        """Inputs that open requests wait for."""
        return {request.inputs[0].digest for request, _ in self._open.values()}

    def fail(self, failed: dict[bytes, str]) -> None:
        """End requests with a failed input. failed: digest -> reason."""
        for handle, (request, _) in list(self._open.items()):
            if (why := failed.get(request.inputs[0].digest)) is not None:
                del self._open[handle]
                self._finished.append(SequenceFinished(handle, "error", error=why))

    def answer(self) -> None:
        """End every request whose vectors are known, oldest first."""
        for handle in list(self._open):
            self._take(handle)

    def _take(self, handle: int) -> None:
        assert self._encodings is not None
        request, queued = self._open[handle]
        vectors = self._encodings.find(request.inputs[0])
        if vectors is None:
            return
        del self._open[handle]
        self._started.append(SequenceStarted(handle, 0, queued, self._clock()))
        self._found.append(TokenVectors(handle, 0, vectors))
        self._finished.append(SequenceFinished(handle, "stop"))

    @property
    def has_news(self) -> bool:
        return bool(self._finished)

    def take(self) -> tuple[Sequence[SequenceStarted], Sequence[SequenceFinished], list[TokenVectors]]:
        """What is to be reported, once."""
        result = self._started, self._finished, self._found
        self._started, self._finished, self._found = [], [], []
        return result
