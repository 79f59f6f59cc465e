"""An engine that answers with given texts, in pieces, and turns for it to say."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from typing import Any

from fake_engine import FakeEngine, config

from thalweg.outputs import CompletionOutput, RequestOutput
from thalweg.params import RequestOutputKind, SamplingParams

CHATML = '{# <tool_call> </tool_call> "arguments": <think> #}' + (
    "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}\n{% endfor %}<assistant>"
)
CALLS = (
    '<think>\nLet me <see>.\n</think>\n\nOne moment.\n<tool_call>\n{"name": "get_weather", "arguments": '
    '{"city":"Par\\u00eds"}}\n</tool_call>\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
)


class Scripted(FakeEngine):
    """Answers with the given texts, one a request, in random pieces."""

    def __init__(self, *texts: str, reason: str = "stop", template: str = CHATML) -> None:
        super().__init__(template=template)
        self.config = config(max_len=4096)
        self.texts, self.reason = list(texts), reason
        self.params: list[SamplingParams] = []

    async def _tokens(self, ids: Any, p: SamplingParams, request_id: str, first: int) -> AsyncGenerator[RequestOutput, None]:
        self.params.append(p)
        text, rng = self.texts.pop(0), random.Random(len(self.params))
        delta, at = p.output_kind is RequestOutputKind.DELTA, 0
        while at < len(text) or at == 0:
            to = min(len(text), at + rng.randrange(1, 9)) if delta else len(text)
            last = to == len(text)
            news = [
                CompletionOutput(i, text[at:to], list(range(to - at)), finish_reason=self.reason if last else None)
                for i in range(p.n)
            ]
            yield RequestOutput(request_id, None, ids, None, news, last, num_cached_tokens=0)
            if last:
                return
            at = to
