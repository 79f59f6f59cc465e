"""The model behind the server: scripted, and held to what the server asks of its text.

A row's script says what the model wants. The grammar that the server made of the request decides, as a mask would: the first
saying that is a sentence of it is said. Where none is, the row fails. So a client that gets its object shows that the server
constrained the turn, and constrained it to something that the client can read.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

from clients.client import MARK, Call, Client, Saying, Script
from clients.server import ROOT, Server

sys.path[:0] = [str(ROOT / "tests/server"), str(ROOT / "tests/template")]

from conftest import Running  # noqa: E402
from fake_engine import EOS, ByteTokenizer, FakeEngine, config  # noqa: E402

from thalweg.engine.client.grammars import StructuredOutputs  # noqa: E402
from thalweg.grammar.grammars import Grammars  # noqa: E402
from thalweg.grammar.source import GrammarError, GrammarVocabulary  # noqa: E402
from thalweg.outputs import CompletionOutput, RequestOutput  # noqa: E402
from thalweg.params import RequestOutputKind, SamplingParams  # noqa: E402
from thalweg.server.settings import ServerSettings  # noqa: E402
from thalweg.text.marks import mark  # noqa: E402

TEMPLATE = (
    '{# <tool_call> </tool_call> "arguments": <think> #}{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}'
    "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}\n{% endfor %}<assistant>"
)
WORDS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
ADDED = dict(enumerate(WORDS, EOS + 1))
"""Token id -> text. One token each and no special ones, as Qwen3 has them."""
STEP = 7
"""Tokens of one delta."""


class MarkedTokenizer(ByteTokenizer):
    """Bytes, and the format's words as tokens."""

    vocab_size = EOS + 1 + len(WORDS)
    added_tokens = ADDED

    def bytes_of(self, token: int) -> bytes:
        return ADDED[token].encode() if token in ADDED else super().bytes_of(token)


def split(text: str) -> list[int]:
    """Text as tokens."""
    ids: list[int] = []
    for piece in re.split("(" + "|".join(WORDS) + ")", text):
        ids += [EOS + 1 + WORDS.index(piece)] if piece in WORDS else piece.encode()
    return ids


def spell(saying: Saying, thinking: bool) -> str:
    """A turn as this model writes it."""
    thought = "<think>\nI see.\n</think>\n\n" if thinking else ""
    if isinstance(saying, str):
        return thought + saying
    lead = "One moment.\n" if thinking else ""
    return thought + lead + "\n".join(map(_spell_call, saying))


def _spell_call(call: Call) -> str:
    return f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': call.arguments})}\n</tool_call>"


def choose_sayings(script: Script, prompt: str) -> tuple[Saying, ...]:
    """What the model wants to say after this prompt."""
    if MARK in prompt:
        return script.last
    if "<tools>" in prompt:
        return script.first
    title = '{"title": "A title"}'
    return script.toolless or ((title, "A title") if '"title"' in prompt else ("A title", title))


class ScriptedEngine(FakeEngine):
    """faults: why it had nothing to say, for each request where that was so."""

    def __init__(self, client: Client) -> None:
        super().__init__(template=TEMPLATE, names=(client.model,))
        self.tokenizer = MarkedTokenizer()
        self.config = config(max_len=400_000)
        self.script = client.script
        self.texts: list[str] = []
        self.faults: list[str] = []
        tokens = [self.tokenizer.bytes_of(i) for i in range(MarkedTokenizer.vocab_size)]
        vocabulary = GrammarVocabulary(tokens=tokens, special=[EOS], eos=[EOS])
        self._structured = StructuredOutputs(lambda: vocabulary)
        self._grammars = Grammars(lambda: vocabulary)

    def close(self) -> None:
        self._structured.close()

    async def prepare(self, params: SamplingParams) -> None:
        if params.structured_outputs is not None:
            await asyncio.to_thread(self._structured.source, params.structured_outputs)

    def allows(self, params: SamplingParams, ids: list[int]) -> bool:
        """Would masks let the model say this, and end there?"""
        if params.structured_outputs is None:
            return True
        matcher = self._grammars.matcher(self._structured.source(params.structured_outputs))
        try:
            matcher.accept(ids)
        except GrammarError:
            return False
        return matcher.complete

    def say(self, params: SamplingParams, prompt: str) -> list[int]:
        sayings = choose_sayings(self.script, prompt)
        for text in (spell(s, thinking) for s in sayings for thinking in (True, False)):
            if self.allows(params, split(text)):
                return split(text)
        requested = params.structured_outputs
        named = requested.asked_as or requested.constraint[0] if requested is not None else ""
        wanted = " or ".join(repr(spell(s, False)) for s in sayings)
        self.faults.append(f"{named} allows nothing of what the model wants to say: {wanted:.400}")
        return []

    async def _tokens(
        self, ids: list[int], p: SamplingParams, request_id: str, first: int
    ) -> AsyncGenerator[RequestOutput, None]:
        prompt = bytes(ids).decode()
        self.texts.append(prompt)
        answer = await asyncio.to_thread(self.say, p, prompt)
        size = STEP if p.output_kind is RequestOutputKind.DELTA else max(len(answer), 1)
        marked = frozenset(p.marked_token_ids or ())
        for at in range(0, max(len(answer), 1), size):
            piece, last = answer[at : at + size], at + size >= len(answer)
            text = "".join(mark(i) if i in marked else self.tokenizer.bytes_of(i).decode() for i in piece)
            choice = CompletionOutput(0, text, piece, finish_reason="stop" if last else None)
            yield RequestOutput(request_id, None, ids, None, [choice], last, num_cached_tokens=0)


@contextmanager
def scripted(client: Client) -> Iterator[Server]:
    """A server on a free port of loopback, with the client's script behind it."""
    engine = ScriptedEngine(client)
    running = Running(engine, ServerSettings(uvicorn_log_level="warning", disable_uvicorn_access_log=True))
    try:
        yield Server(running.url, client.model, engine.texts, engine.faults)
    finally:
        running.stop()
        engine.close()
