"""A guard around a drafter. Packages write drafters, and no fault of one may end the engine or reach the device."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from thalweg.engine.control.speculation.drafter import Drafter, Proposals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    I32 = NDArray[np.int32]

logger = logging.getLogger(__name__)
T = TypeVar("T")


class GuardedDrafter(Drafter):
    """Cuts proposals to the allowed count and to tokens of the vocabulary. A drafter that raises, or violates its contract in
    another way, is logged once and never called again. Text does not depend on drafts, so requests continue."""

    def __init__(self, drafter: Drafter, name: str, vocab: int) -> None:
        """name: of the method, for the log. vocab: tokens of the model."""
        self.most, self.bounds, self.remembers = drafter.most, drafter.bounds, drafter.remembers
        self._drafter, self._name, self._vocab = drafter, name, vocab
        self.failed = False

    @property
    def proposer(self) -> str:  # type: ignore[override]
        return "" if self.failed else self._drafter.proposer

    @property
    def reach(self) -> int:
        return self._drafter.reach

    def propose(self, slots: I32, most: I32) -> Proposals:
        nothing = Proposals(np.empty(0, np.int32), np.zeros(slots.size, np.int32))
        return self._call(lambda: self._cut(self._drafter.propose(slots, most), most), nothing)

    def is_promising(self, slots: I32) -> NDArray[np.bool_]:
        def ask() -> NDArray[np.bool_]:
            return np.broadcast_to(np.asarray(self._drafter.is_promising(slots), np.bool_), slots.shape)

        return self._call(ask, np.zeros(slots.size, np.bool_))

    def receive(self, slots: I32, drafts: I32) -> None:
        self._call(lambda: self._drafter.receive(slots, drafts), None)

    def learn(self, slots: I32, accepted: I32) -> None:
        self._call(lambda: self._drafter.learn(slots, accepted), None)

    def finish(self, slot: int) -> None:
        self._call(lambda: self._drafter.finish(slot), None)

    def _call(self, call: Callable[[], T], nothing: T) -> T:
        if self.failed:
            return nothing
        try:
            return call()
        except Exception as e:  # a drafter may raise anything
            self.failed = True
            logger.error(
                "speculative_config: drafter %s: %s: %s; no more drafts are made until the engine restarts",
                self._name, type(e).__name__, e,
            )  # fmt: skip
            return nothing

    def _cut(self, result: Proposals, most: I32) -> Proposals:
        """The proposals that a step can verify. ValueError for arrays that do not belong together."""
        tokens, counts = np.asarray(result.tokens), np.asarray(result.counts)
        for name, array in (("tokens", tokens), ("counts", counts)):
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise ValueError(f"{name}: {array.dtype}{list(array.shape)} is no list of whole numbers")
        each = counts.tolist()
        if len(each) != most.size or min(each, default=0) < 0 or sum(each) != tokens.size:
            raise ValueError(f"counts: {counts.size} of {most.size} sequences, for {tokens.size} tokens in all")
        known = not tokens.size or (tokens.min() >= 0 and tokens.max() < self._vocab)
        if known and all(n <= m for n, m in zip(each, most.tolist(), strict=True)):
            return result
        valid = (tokens >= 0) & (tokens < self._vocab)
        ends = np.cumsum(counts)
        drafts, fits = np.split(tokens, ends[:-1]), np.split(valid, ends[:-1])
        kept = [d[:n][np.logical_and.accumulate(v[:n])].tolist() for d, v, n in zip(drafts, fits, most.tolist(), strict=True)]
        return Proposals.of(kept)
