"""Tests a derived format: renders random turns and reads them back."""

from __future__ import annotations

import json
import random
from typing import Any

from thalweg.turns.bind import BoundTurnFormat, bind
from thalweg.turns.derive.probes import NAMES, SCHEMAS, Probes, common_prefix_length
from thalweg.turns.events import Message
from thalweg.turns.format import TurnFormat
from thalweg.turns.reader import Reader, read

TURNS = 8
"""Number of random turns."""
WORDS = ("Paris", "a b", "x < y", "é日", '"q"', "one\ntwo")
CONTENTS = ("", "Certainly.", "One\n\ntwo.")
THOUGHT = "Hmm, so be it."
CUTS = ">\n]:"
"""Characters where a token may end, if the prompt is not a prefix of the turn after it."""


def holds(probes: Probes, turn: TurnFormat, end: str, called_end: str) -> bool:
    """Does the format read the turns back? end: the text that the template writes after a turn. called_end: after a turn with
    calls. Of the turns that show all their parts, at least one must be read and none misread, both whole and by character. (The
    reader is a machine over characters: other cuts lie between those.)"""
    bound, rng, called, thought = bind(turn, None), random.Random(0), 0, 0
    for i in range(TURNS):
        example = _turn(probes, rng, i)
        whole = probes.turn(example["content"], example["thought"], example["calls"])
        if whole is None:
            continue
        before, text = _split(whole, probes.prompt, called_end if example["calls"] else end)
        expected = _expect(example, text)
        if expected is None or _lacks_reasoning(turn, before, text):
            continue
        if example["thought"] and expected[1] and turn.reasoning is None:
            continue
        if turn.calls is not None and turn.calls.bare and example["content"] and example["calls"]:
            continue  # calls without markers are calls only at the beginning of a turn
        called, thought = called + bool(expected[2]), thought + bool(expected[1])
        for message in (read(bound, text, before, SCHEMAS), _slowly(bound, text, before)):
            if _plain(message) != expected:
                return False
    return bool((called or turn.calls is None) and (called or thought))


def _turn(probes: Probes, rng: random.Random, i: int) -> dict[str, Any]:
    calls = []
    for j in range((1, 2, 1, 0)[i % 4]):
        args: dict[str, Any] = {"zqalpha": rng.choice(WORDS)}
        if rng.random() < 0.6:
            args["zqbeta"] = rng.randrange(-9, 99)
        if rng.random() < 0.4:
            args["zqgamma"] = rng.random() < 0.5
        if rng.random() < 0.4:
            args["zqdelta"] = [1, 2]
        calls.append(probes.call(j, args, rng.choice(NAMES)))
    content = rng.choice(CONTENTS if calls else CONTENTS[1:])
    return {"content": content, "thought": THOUGHT if i % 2 else "", "calls": calls}


def _expect(example: dict[str, Any], text: str) -> tuple[str, str, list[Any]] | None:
    """The expected (content, reasoning, calls). None: the template did not render all parts."""
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in example["calls"]]
    if any(n not in text for n, _ in calls) or text.count("zqalpha") < len(calls) or example["content"] not in text:
        return None
    return example["content"], example["thought"] if example["thought"] and example["thought"] in text else "", calls


def _lacks_reasoning(turn: TurnFormat, before: str, text: str) -> bool:
    """Does the prompt open reasoning that history omits?"""
    row = turn.reasoning
    if row is None:
        return False
    began = before.rstrip().endswith(row.open.rstrip()) or row.open.rstrip() in text
    closed = row.close in text
    return began != closed if THOUGHT in text else began and not closed


def _split(whole: str, prompt: str, end: str) -> tuple[str, str]:
    same = common_prefix_length(whole, prompt)
    if same < len(prompt):
        same = max(whole.rfind(c, 0, same) + 1 for c in CUTS)
    return whole[:same], whole[same:].rstrip().removesuffix(end.rstrip()).rstrip()


def _slowly(bound: BoundTurnFormat, text: str, before: str) -> Message:
    reader, message = Reader(bound, before, SCHEMAS), Message()
    for c in text:
        message.add(reader.push(c))
    message.add(reader.finish())
    return message


def _plain(message: Message) -> tuple[str, str, list[Any]] | None:
    try:
        calls = [(c.name, json.loads(c.arguments)) for c in message.calls]
    except ValueError:
        return None
    return message.content.strip(), message.reasoning, calls
