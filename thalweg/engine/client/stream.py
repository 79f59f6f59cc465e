"""One request's outputs on their way to its reader. Bounded: unread outputs are merged into one."""

from __future__ import annotations

import asyncio

from thalweg.engine.client.adapters import AdapterUse
from thalweg.engine.client.core import Output
from thalweg.engine.client.seats import SuspendableRequest
from thalweg.errors import ThalwegError
from thalweg.outputs import RequestOutput
from thalweg.params import PoolingParams, RequestOutputKind, SamplingParams


class OutputStream:
    """One writer, one reader, both on the event loop."""

    __slots__ = ("_adds_up", "_arrived", "_error", "_pending", "_weight", "adapter", "computation", "params", "waiting")

    def __init__(
        self, params: SamplingParams | PoolingParams, computation: SuspendableRequest, adapter: AdapterUse | None = None
    ) -> None:
        """computation: of the request, which stops while too much is unread. adapter: its adapter, until `release`."""
        self.params, self.computation, self.adapter = params, computation, adapter
        sampling = params if isinstance(params, SamplingParams) else None
        self._adds_up = sampling is not None and sampling.output_kind is RequestOutputKind.DELTA
        self._weight = 1 + ((sampling and sampling.logprobs) or 0)
        """Weight of a token in `waiting`."""
        self._arrived = asyncio.Event()
        self._pending: Output | None = None
        self._error: ThalwegError | None = None
        self.waiting = 0
        """Unread tokens and log-probabilities, deltas only."""

    def put(self, output: Output) -> None:
        """Deltas are merged. Any other output replaces the unread one."""
        if self._adds_up and isinstance(output, RequestOutput):
            self.waiting += sum(len(c.token_ids) for c in output.outputs) * self._weight
            if isinstance(self._pending, RequestOutput):
                output = merge_outputs(self._pending, output)
        self._pending = output
        self._arrived.set()

    def fail(self, error: ThalwegError) -> None:
        """Raise the error to the reader after the unread output."""
        self._error = error
        self._arrived.set()

    async def get(self) -> Output:
        """The next output. Waits for one. Raises the error of `fail`."""
        await self._arrived.wait()
        if self._pending is None:
            assert self._error is not None
            raise self._error
        output, self._pending, self.waiting = self._pending, None, 0
        if self._error is None:
            self._arrived.clear()
        return output


def merge_outputs(old: RequestOutput, new: RequestOutput) -> RequestOutput:
    """Two deltas as one, made of their parts, in time independent of the amount that already waits."""
    if new.prompt_logprobs is None:
        new.prompt_logprobs = old.prompt_logprobs
    later = {c.index: c for c in new.outputs}
    for earlier in old.outputs:
        c = later.get(earlier.index)
        if c is None:
            new.outputs.append(earlier)
            continue
        c.text = earlier.text + c.text
        ids = earlier.token_ids if isinstance(earlier.token_ids, list) else list(earlier.token_ids)
        ids.extend(c.token_ids)
        c.token_ids = ids
        if earlier.frames is not None:
            c.frames = [*earlier.frames, *(c.frames or ())]
        if earlier.logprobs is not None:
            earlier.logprobs.extend(c.logprobs or ())
            c.logprobs = earlier.logprobs
    new.outputs.sort(key=lambda c: c.index)
    return new
