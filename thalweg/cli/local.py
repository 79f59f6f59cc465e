"""Text from an engine started here, a piece at a time, for interactive commands."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from thalweg.config import EngineArgs
from thalweg.errors import ThalwegError
from thalweg.params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from thalweg.async_llm import AsyncLLM


class Local:
    """An engine process driven from ordinary code. Use as a context manager."""

    def __init__(self, args: EngineArgs) -> None:
        self._args = args
        self._runner = asyncio.Runner()
        self._count = 0

    def __enter__(self) -> Local:
        from thalweg.async_llm import AsyncLLM

        self._runner.__enter__()
        try:
            self.engine: AsyncLLM = self._runner.run(AsyncLLM.start(self._args))
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._runner.run(self._end())
        finally:
            self._runner.close()

    async def _end(self) -> None:
        await self.engine.shutdown()

    def say(self, prompt: str | dict[str, Any], params: SamplingParams, write: Callable[[str], object]) -> str:
        """The answer. Each piece also goes to `write` when it arrives. Ctrl-C ends the request and raises
        KeyboardInterrupt."""
        return self._runner.run(self._say(prompt, params, write))

    async def _say(self, prompt: str | dict[str, Any], params: SamplingParams, write: Callable[[str], object]) -> str:
        assert params.output_kind is RequestOutputKind.DELTA
        self._count += 1
        pieces = []
        stream = self.engine.generate(prompt, params, f"local-{self._count}")
        try:
            async for output in stream:
                for choice in output.outputs:
                    if choice.finish_reason == "error":
                        raise ThalwegError(output.error or "the engine could not finish this request")
                    pieces.append(choice.text)
                    write(choice.text)
        finally:
            await stream.aclose()
        return "".join(pieces)


def to_terminal(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
