"""Derives the format of calls: renders a turn with one call and one with two, and takes the text between known words."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from thalweg.turns.derive.probes import (
    AFTER,
    BEFORE,
    CONTENT,
    IDS,
    KEYS,
    NAMES,
    NUMBER,
    WORD,
    Probes,
    pieces,
    same_begin,
    same_end,
    white_after,
    white_before,
)
from thalweg.turns.format import Body, CallHead, Calls, GemmaArgs, JsonArgs, JsonCalls, PythonCalls, TaggedArgs, Value

NAME = "derived"
BETWEEN = ("", ",", ";")
"""Separators of calls, apart from white space, where single calls have no markers."""
ARGUMENTS = {KEYS[0]: WORD, KEYS[1]: NUMBER}


@dataclass(frozen=True, slots=True)
class CallSpan:
    """One call in a text, from `begin` to `end`, and its format there."""

    begin: int
    end: int
    body: Body
    head: CallHead | None = None
    around: str = ""


def calls_of(probes: Probes) -> tuple[Calls, str] | None:
    """(format of calls, the text that ends a turn after its calls). None: not understood."""
    one = probes.turn(calls=[probes.call(0)])
    if one is None or NAMES[0] not in one:
        probes.indexed = True
        one = probes.turn(calls=[probes.call(0)])
        if one is None or NAMES[0] not in one:
            return None
    text, end = probes.body(one).rstrip(), _end(probes, one)
    found = _span(text, 0)
    if found is None:
        return None
    before, after = text[: found.begin], text[found.end :].removesuffix(end)
    before = before[len(same_begin(before, probes.body(probes.prompt))) :]
    spoken = _after_content(probes)
    if spoken is not None:
        before = same_end(before, spoken) or spoken
    between, last = _between(probes, found, end)
    result = _row(found, before, between, last if between is not None else after)
    if result is None:
        return None
    row, rest = result
    if isinstance(row.body, TaggedArgs):
        row = _add_quotes(probes, row, row.body)
    return row, rest + end


def _end(probes: Probes, one: str) -> str:
    """The text that ends a turn, with or without calls."""
    plain = probes.turn(CONTENT)
    return same_end(one.rstrip(), plain.rpartition(CONTENT)[2].rstrip()) if plain is not None and CONTENT in plain else ""


def _after_content(probes: Probes) -> str | None:
    """The text between content and a call. None: the template omits content, or writes it after the call."""
    both = probes.turn(CONTENT, calls=[probes.call(0)])
    if both is None or CONTENT not in both:
        return None
    text = probes.body(both)
    found = _span(text, 0)
    at = text.rfind(CONTENT, 0, found.begin) if found is not None else -1
    return text[at + len(CONTENT) : found.begin] if found is not None and at >= 0 else None


def _between(probes: Probes, one: CallSpan, end: str) -> tuple[str | None, str]:
    """(text between two calls, text after the second). None: a turn cannot have two calls."""
    two = probes.turn(calls=[probes.call(0), probes.call(1)])
    if two is None or NAMES[0] not in two or NAMES[1] not in two:
        return None, ""
    text = probes.body(two).rstrip()
    first = _span(text, 0)
    second = _span(text, 1, first.end if first is not None else 0)
    if first is None or second is None:
        return None, ""
    if isinstance(first.body, JsonCalls) and first.body.array:
        return "", text[first.end :].removesuffix(end)
    return text[first.end : second.begin], text[second.end :].removesuffix(end)


def _span(text: str, index: int, start: int = 0) -> CallSpan | None:
    """The call number `index`, in any of the known forms."""
    return _item(text, index, start) or _name_and_arguments(text, index, start)


def _item(text: str, index: int, start: int) -> CallSpan | None:
    """A call as a JSON object with the name in it, or within an array of such objects."""
    for at, value, end in _json(text, start):
        items = value if isinstance(value, list) else [value]
        found = next((b for b in (_keys(i, index) for i in items) if b is not None), None)
        if found is not None:
            return CallSpan(at, end, replace(found, array=isinstance(value, list)))
    return None


def _keys(item: Any, index: int) -> JsonCalls | None:
    if not isinstance(item, dict):
        return None
    if NAMES[index] in item and _are_arguments(item[NAMES[index]]):
        return JsonCalls(keyed=True)
    name = next((k for k, v in item.items() if v == NAMES[index]), None)
    args = next((k for k, v in item.items() if _are_arguments(v)), None)
    if name is None or args is None:
        return None
    id = next((k for k, v in item.items() if v == IDS[index] or k.endswith("id")), None)
    names, keys = list(item), tuple(dict.fromkeys((args, "arguments", "parameters")))
    first = id is not None and names.index(id) < names.index(name)
    return JsonCalls((name,), keys, (id or "id",), id_first=first)


def _are_arguments(value: Any) -> bool:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return False
    return bool(value == ARGUMENTS)


def _json(text: str, start: int) -> list[tuple[int, Any, int]]:
    """The outermost JSON objects and arrays in a text: (begin, value, end)."""
    found, at, read = [], start, json.JSONDecoder()
    while at < len(text):
        if text[at] in "{[":
            try:
                value, end = read.raw_decode(text, at)
            except (ValueError, RecursionError):
                pass
            else:
                found.append((at, value, end))
                at = end
                continue
        at += 1
    return found


def _name_and_arguments(text: str, index: int, start: int) -> CallSpan | None:
    """A call as its name, then its arguments."""
    at = text.find(NAMES[index], start)
    if at < 0:
        return None
    after = at + len(NAMES[index])
    args = next(((a, e) for a, v, e in _json(text, after) if v == ARGUMENTS), None)
    other = text.find(NAMES[1 - index], after)
    if args is not None and (other < 0 or args[0] < other):
        return _json_args(text, index, at, after, args, start)
    k1, v1, k2, v2 = _places(text, after)
    if min(k1, v1, k2, v2) < 0 or not k1 < v1 < k2 < v2:
        return None
    mid, colon = text[after:k1], text[k1 + len(KEYS[0]) : v1]
    step, second = text[v1 + len(WORD) : k2], text[k2 + len(KEYS[1]) : v2]
    end = v2 + len(str(NUMBER))
    if mid.strip() == "(" and second == "=" and colon in ('="', "='"):
        closed = text.find(")", end)
        return CallSpan(at, closed + 1, PythonCalls(list=False)) if closed >= 0 else None
    if mid == "{" and second == ":" and len(colon) > 2 and step == colon[1:] + ",":
        closed = text.find("}", end)
        return CallSpan(at, closed + 1, GemmaArgs(colon[1:]), CallHead(then=(("{", "args"),))) if closed >= 0 else None
    return _tagged_args(text, at, mid, colon, step, second, end)


def _places(text: str, at: int) -> tuple[int, int, int, int]:
    k1 = text.find(KEYS[0], at)
    v1 = text.find(WORD, k1)
    k2 = text.find(KEYS[1], v1)
    return k1, v1, k2, text.find(str(NUMBER), k2)


def _json_args(text: str, index: int, at: int, after: int, args: tuple[int, int], start: int) -> CallSpan | None:
    """A call as its name, an optional id, and JSON. The id may come first."""
    mid, id = text[after : args[0]], IDS[index]
    counted = f"{AFTER}{index}"
    if text[:at].endswith(BEFORE) and mid.startswith(counted):
        head = CallHead("id", ((mid.removeprefix(counted).strip(), "args"),), (BEFORE, AFTER))
        at -= len(BEFORE)
    elif id in mid:
        to_id, to_args = mid.split(id, 1)
        head = CallHead("name", ((to_id.strip(), "id"), (to_args.strip(), "args")))
    elif (first := text.find(id, start, at)) >= 0:
        head = CallHead("id", ((text[first + len(id) : at].strip(), "name"), (mid.strip(), "args")))
        at = first
    else:
        head = CallHead(then=((mid if mid.strip() else mid[:1], "args"),))
    return CallSpan(at, args[1], JsonArgs(), head) if all(t for t, _ in head.then) else None


def _tagged_args(text: str, at: int, mid: str, colon: str, step: str, second: str, end: int) -> CallSpan | None:
    """A call with keys and values between tags. `step` is the text between two arguments."""
    if colon == ">" and KEYS[0] in step:
        return _elements(text, at, mid, step, end)
    opened = same_end(mid, step)
    key_open, value_end = opened.strip(), step[: len(step) - len(opened)]
    newline = colon.endswith("\n") and value_end.startswith("\n")
    tail = text[end : end + len(value_end)]
    closed = (same_begin(value_end, tail) if tail != value_end else value_end).strip()
    if not key_open or not closed or KEYS[0] in step:
        return None
    quote = ("", "")
    typed: tuple[tuple[str, Value | None], ...] = ((colon.strip(), None),)
    value_open, between = "", "\n" if newline else ""
    if colon != second:
        typed = ((colon.strip(), "string"), (second.strip(), "json"))
    elif len(parts := colon.split(">", 1)) == 2 and parts[1].strip():
        typed, value_open = ((parts[0].strip() + ">", None),), parts[1].strip()
        between = white_before(parts[1])
    body = TaggedArgs(key_open, typed, closed, value_open, newline, quote, between, white_before(opened))
    head_end = mid[: len(mid) - len(opened)]
    word = head_end.strip()
    around = white_before(opened)
    head = CallHead(then=((word, "args"),) if word else ((key_open, "key"),))
    spare = text[end:].find(closed)
    stop = end + spare + len(closed) if spare >= 0 else end
    return CallSpan(at, stop, body, head, around)


def _elements(text: str, at: int, mid: str, step: str, end: int) -> CallSpan | None:
    """A call with tags named after its keys: <KEY>value</KEY>."""
    value_close, _, rest = step.partition(KEYS[0])
    opened = same_end(mid, rest[1:])
    word = mid[: len(mid) - len(opened)].strip()
    stop = text.find(f"{KEYS[1]}>", end)
    if not opened.strip() or not value_close.strip() or rest[:1] != ">" or stop < 0:
        return None
    body = TaggedArgs(opened.strip(), ((">", None),), value_close.strip(), nested=True)
    head = CallHead(then=((word, "args"),) if word else ((body.key_open, "key"),))
    return CallSpan(at, stop + len(KEYS[1]) + 1, body, head, white_before(opened))


def _row(found: CallSpan, before: str, between: str | None, after: str) -> tuple[Calls, str] | None:
    """(the row with its markers, the text left after the last). The markers come from the text before, between and after
    calls."""
    body, section = found.body, ("", "")
    if isinstance(body, PythonCalls) and before.rstrip().endswith("[") and after.lstrip().startswith("]"):
        body, before, after = PythonCalls(list=True), before.rstrip()[:-1], after.lstrip()[1:]
        between = ", "
    opened, closed, separator, line, rest = before, after, "", "", ""
    if between is not None and between.strip() in BETWEEN:
        separator = between
    elif between is not None:
        opened = same_end(before, between)
        middle = between[: len(between) - len(opened)]
        closed = same_begin(after, middle)
        separator = middle[len(closed) :] + white_before(opened)
        outer, rest = before[: len(before) - len(opened)], after[len(closed) :]
        if outer.strip():
            last, rest = _as_many(outer, rest)
            section, line = (outer.strip(), last.strip()), white_after(outer) + white_before(opened)
        if separator.strip():
            return None
    if not section[0]:
        closed, more = _as_many(opened, closed)
        rest = more + rest
    bare = not opened.strip() and not section[0]
    if bare and found.head is not None:
        return None
    row = Calls(
        NAME,
        body,
        opened.strip(),
        closed.strip(),
        head=found.head,
        section=section,
        bare=bare,
        separator=separator,
        lead=white_before(before),
        around=found.around or white_after(opened),
        section_around=line,
        ids="indexed" if found.head is not None and found.head.name_in_id[1] else "random",
    )
    return row, rest.strip()


def _as_many(opened: str, closed: str) -> tuple[str, str]:
    """(as many closing tags as opening ones, the text after them). That text ends the turn."""
    most, words, n = sum(map(_is_tag, pieces(opened))), pieces(closed), 0
    if not most or not any(map(_is_tag, words)):
        return closed, ""
    for n, word in enumerate(words, 1):  # noqa: B007
        most -= _is_tag(word)
        if most <= 0:
            break
    return "".join(words[:n]), "".join(words[n:])


def _is_tag(piece: str) -> bool:
    return piece[0] in "<["


def _add_quotes(probes: Probes, row: Calls, body: TaggedArgs) -> Calls:
    """The row with the quotes that the template writes around a value with "<" in it."""
    value = f"{WORD} < {WORD}"
    text = probes.turn(calls=[probes.call(0, {KEYS[0]: value})])
    if text is None or value not in text:
        return row
    before, _, after = text.partition(value)
    line = "\n" if body.newline else ""
    before = before.rpartition(body.key_open)[2].removeprefix(KEYS[0])
    starts = [t + (body.between if not body.newline else "") + body.value_open + line for t, _ in body.key_close]
    start = next((s for s in starts if before.startswith(s)), None)
    quote = (before[len(start) :], after.partition(line + body.value_close)[0]) if start is not None else ("", "")
    return replace(row, body=replace(body, quote=quote)) if all(quote) else row
