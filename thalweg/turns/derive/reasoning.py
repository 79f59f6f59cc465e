"""Derives the markers that a chat template writes around reasoning and content."""

from __future__ import annotations

from thalweg.turns.derive.probes import CONTENT, THOUGHT, Probes, pieces, same_begin, same_end, white_before
from thalweg.turns.format import Calls, Reasoning

PAIRS = ("<>", "[]")
"""First and last characters of tags."""


def reasoning_of(probes: Probes, source: str, calls: Calls | None) -> Reasoning | None:
    """source: the template's source. It has the other marker of reasoning where the prompt has one. calls: the format of calls,
    if known: some templates write reasoning only before calls."""
    plain, thought = probes.turn(CONTENT), probes.turn(CONTENT, THOUGHT)
    if plain is None or CONTENT not in plain:
        return None
    if _shows(thought, CONTENT):
        return _between(probes, plain, thought or "", CONTENT)
    mark = (calls.section[0] or calls.open) if calls is not None else ""
    if mark:
        one, both = probes.turn(calls=[probes.call(0)]), probes.turn("", THOUGHT, [probes.call(0)])
        if one is not None and mark in one and _shows(both, mark):
            return _between(probes, one, both or "", mark)
    return _from_prompt(probes, plain.rpartition(CONTENT)[2], source)


def _shows(thought: str | None, mark: str) -> bool:
    """Does the text have the reasoning, with `mark` after it?"""
    return thought is not None and 0 <= thought.find(THOUGHT) < thought.rfind(mark)


def _between(probes: Probes, plain: str, thought: str, mark: str) -> Reasoning | None:
    """plain, thought: a turn without reasoning, and with it. mark: the text after the reasoning in both."""
    head = probes.body(plain).partition(mark)[0]
    before, _, rest = probes.body(thought).partition(THOUGHT)
    between = rest.partition(mark)[0]
    prompt = probes.body(probes.prompt)
    if before.strip() == head.strip():  # only the prompt has its opening marker
        opened = prompt[len(same_begin(prompt, before)) :] if before.strip() else ""
        closed = between
    elif same_begin(before, head).strip() == head.strip():  # a turn without reasoning has no markers of it
        opened, closed = before[len(same_begin(before, head)) :], between
        closed = closed.removesuffix(same_end(closed, head))
    else:
        opened = _tags(before)[-1] if _tags(before) else ""
        closed = "" if opened in head else between.removesuffix(same_end(between, head))
        if not opened or opened not in head:
            opened = before[len(same_begin(before, head)) :]
    opened, closed = opened.strip(), closed.strip() or next(iter(_tags(between)), "")
    if not opened or not closed or opened == closed:
        return None
    after = white_before(between.partition(closed)[2])
    return Reasoning(opened, closed, implicit_ends=True, around=white_before(between), after=after)


def _from_prompt(probes: Probes, tail: str, source: str) -> Reasoning | None:
    """The markers of reasoning that the prompt opens, or opens and closes, and that history omits."""
    tag = next(iter(_tags(probes.body(probes.prompt))[-1:]), "")
    if not _is_tag(tag):
        return None
    name = tag[1:].removeprefix("/")
    opened, closed = tag[0] + name, tag[0] + "/" + name
    if opened not in source or closed not in source or closed in tail:
        return None
    return Reasoning(opened, closed, implicit_ends=True, around="\n", after="\n\n")


def _tags(text: str) -> list[str]:
    return [p for p in pieces(text) if p.strip()]


def wraps_of(probes: Probes, reasoning: Reasoning | None, end: str) -> tuple[str, ...]:
    """Markers around content, and the header that the template repeats after reasoning. end: the text that ends every turn."""
    plain = probes.turn(CONTENT)
    if plain is None or CONTENT not in plain:
        return ()
    before, _, after = probes.body(plain).partition(CONTENT)
    prompt = probes.body(probes.prompt)
    header = same_begin(before, prompt)
    found = [before[len(header) :], after.rstrip().removesuffix(end)]
    if reasoning is not None:
        found[0] = found[0].rpartition(reasoning.close)[2].rpartition(reasoning.open)[2]
        thought = probes.turn(CONTENT, THOUGHT) or ""
        if header.strip() and header in thought.partition(THOUGHT)[2]:
            found.append(header)
    return tuple(t.strip() for t in found if _is_tag(t.strip()) or (t is header and t.strip()))


def _is_tag(text: str) -> bool:
    return len(text) > 2 and text[0] + text[-1] in PAIRS
