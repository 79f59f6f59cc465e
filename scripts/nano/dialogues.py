"""What the model is trained on: dialogues made of the tasks' examples, as text under the chat template and as token ids with
the places of the assistant's tokens. Knows the tasks and the tokenizer, no tensors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from thalweg.nano import TASKS, Example, generate
from thalweg.nano.example import Message, split_of
from thalweg.nano.numbers import digits
from thalweg.nano.reading import haystack
from thalweg.nano.strings import copy_of
from thalweg.nano.talk import plain_fact

TEMPLATE = Path(__file__).resolve().parent / "chat_template.jinja"
ALONE = frozenset({"instruction", "tool_call", "tool_result", "recall", "needle"})
"""Tasks whose examples are whole dialogues; the others may follow each other in one."""
_CHAINED = 0.4


@cache
def template() -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8"))


def render(messages: list[Message], tools: tuple[dict[str, Any], ...] = (), *, prompt: bool = False) -> str:
    """The text of a dialogue; with `prompt`, up to where the assistant is to speak."""
    return template().render(messages=messages, tools=list(tools) or None, add_generation_prompt=prompt)


class Dialogues:
    """An endless source of training dialogues: which task comes next is drawn by weight."""

    def __init__(self, weights: Mapping[str, float], seed: int) -> None:
        self.random = Random(f"dialogues/{seed}")
        self.sources: dict[str, Iterator[Example]] = {t: generate(t, "train", seed) for t in TASKS}
        self.weights = dict(weights)
        self.drill = 0.0
        """Share of dialogues that are long copies: nothing teaches a young model faster to find and repeat what it was told,
        and most tasks need that."""

    def next(self) -> str:
        """The text of the next dialogue."""
        r = self.random
        if r.random() < self.drill:
            example = copy_of(r, r.randint(4, 30))
            again: list[Message] = [{"role": "user", "content": "Again."}, _said(example)] * r.randint(0, 3)
            messages = [*example.messages, _said(example), *again]
            return render(messages) if split_of("copy", example.key) == "train" else self.next()
        task = r.choices(list(self.weights), list(self.weights.values()))[0]
        if task == "needle" and r.random() < 0.7:
            return self._long()
        first = next(self.sources[task])
        messages = [*first.messages, _said(first)]
        if task not in ALONE:
            while r.random() < _CHAINED:
                messages += self._turn()
        return render(messages, first.tools)

    def _turn(self) -> list[Message]:
        """One more question and answer."""
        r = self.random
        if r.random() < 0.15:
            fact = digits(r)
            return [*fact.messages, _said(fact)]
        if r.random() < 0.06:
            fact = plain_fact(r)
            return [*fact.messages, _said(fact)] if split_of("chat", fact.key) == "train" else []
        task = r.choices(list(self.weights), list(self.weights.values()))[0]
        example = next(self.sources["chat" if task in ALONE else task])
        return [*example.messages, _said(example)]

    def _long(self) -> str:
        """A long text with several questions, which makes more of its cost."""
        r = self.random
        text, facts = haystack(r, round(8 * (140 / 8) ** r.random()), 5)
        facts = [f for f in facts if split_of("needle", f"{f[1]} {f[2]}") == "train"]
        messages: list[Message] = []
        for i, (_, question, answer) in enumerate(facts):
            messages.append({"role": "user", "content": f"{text}\n{question}" if i == 0 else question})
            messages.append({"role": "assistant", "content": answer})
        return render(messages) if messages else self.next()


def _said(example: Example) -> Message:
    return {"role": "assistant", "content": example.answer}


def encode(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[bool]]:
    """Token ids, and which of them the assistant writes (its end mark included)."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    start, end = tokenizer.token_to_id("<|im_start|>"), tokenizer.token_to_id("<|im_end|>")
    role, line = tokenizer.encode("assistant").ids, tokenizer.encode("\n").ids
    head = [start, *role, *line]
    own, inside, i = [False] * len(ids), False, 0
    while i < len(ids):
        if not inside and ids[i : i + len(head)] == head:
            inside, i = True, i + len(head)
            continue
        own[i] = inside
        inside = inside and ids[i] != end
        i += 1
    return ids, own
