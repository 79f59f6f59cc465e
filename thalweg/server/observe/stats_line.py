"""A line in the log every few seconds while there is traffic: throughput, queue, cache."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from thalweg.engine.messages import Outputs, Stats

log = logging.getLogger(__name__)


class StatsLine:
    """A StatLogger. Rates are means over the time since the line before."""

    def __init__(self, every: float, clock: Callable[[], float] = time.monotonic, name: str = "") -> None:
        """name: the model's, where a server has several."""
        self._every, self._clock, self._prefix = every, clock, f"{name}: " if name else ""
        self._since = clock()
        self._before: Stats | None = None

    def record(self, outputs: Outputs) -> None:
        stats, now = outputs.stats, self._clock()
        if stats is None or (now - self._since < self._every and self._before is not None):
            return
        if self._before is not None:
            log.info("%s%s", self._prefix, self.line(self._before, stats, now - self._since))
        self._before, self._since = stats, now

    def record_request(self, output: object, params: object) -> None:
        """Says nothing per request."""

    @staticmethod
    def line(before: Stats, now: Stats, seconds: float) -> str:
        seconds = max(seconds, 1e-9)
        queries = now.prefix_queries - before.prefix_queries
        hits = 100 * (now.prefix_hits - before.prefix_hits) / queries if queries else 0.0
        parts = [
            f"prompt throughput: {(now.prompt_tokens - before.prompt_tokens) / seconds:.1f} tokens/s",
            f"generation throughput: {(now.generated_tokens - before.generated_tokens) / seconds:.1f} tokens/s",
            f"running: {now.running}",
            f"waiting: {now.waiting}",
            f"KV cache usage: {100 * now.blocks_used / max(1, now.blocks_total):.1f}%",
            f"prefix cache hit rate: {hits:.1f}%",
        ]
        if now.preemptions > before.preemptions:
            parts.append(f"preemptions: {now.preemptions - before.preemptions}")
        return ", ".join(parts)
