"""Tasks on text as text: copy, reverse, upper and lower case, alphabetical order."""

from __future__ import annotations

from random import Random

from thalweg.nano.example import Example
from thalweg.nano.words import ADJECTIVES, CITIES, COLOURS, NAMES, THINGS, invent_word

_COPY = (
    "Repeat: {x}",
    "Copy this: {x}",
    "Say this again: {x}",
    "Repeat after me: {x}",
    "Repeat the text: {x}",
    "Please repeat exactly: {x}",
    "Write the same: {x}",
    "Echo: {x}",
    'Say "{x}"',
    'Repeat "{x}"',
)
_REVERSE = (
    "Reverse: {x}",
    "Reverse the order: {x}",
    "Write backwards: {x}",
    "Reverse this list: {x}",
    "QKPrologue around: {x}",
    "Say these in reverse order: {x}",
    "Please reverse the list {x}",
    "List in reverse: {x}",
)
_UPPER = (
    "Write in upper case: {x}",
    "Make upper case: {x}",
    "Upper case: {x}",
    "Change to capital letters: {x}",
    "Write {x} in capitals",
    "Convert to uppercase: {x}",
)
_LOWER = (
    "Write in lower case: {x}",
    "Make lower case: {x}",
    "Lower case: {x}",
    "Change to small letters: {x}",
    "Write {x} in small letters",
    "Convert to lowercase: {x}",
)
_SORT = (
    "Sort: {x}",
    "Sort the words: {x}",
    "Put in alphabetical order: {x}",
    "Sort alphabetically: {x}",
    "Order these from A to Z: {x}",
    "Please sort this list: {x}",
)
_SORT_BACK = (
    "Sort from Z to A: {x}",
    "Put in reverse alphabetical order: {x}",
    "Order these from Z to A: {x}",
    "Sort backwards from Z to A: {x}",
)


def ask(r: Random, forms: tuple[str, ...], x: str) -> tuple[dict[str, str], ...]:
    """A user's turn with `x` in one of the forms. Sometimes the first letter is lower case."""
    text = r.choice(forms).format(x=x)
    return ({"role": "user", "content": text[0].lower() + text[1:] if r.random() < 0.15 else text},)


def copy(r: Random) -> Example:
    return copy_of(r, r.randint(1, 8))


def copy_of(r: Random, n: int) -> Example:
    """An example to copy `n` items: words, names, numbers and invented words."""
    x = r.choice((" ", " ", " ", ", ")).join(_anything(r) for _ in range(n))
    return Example("copy", x, ask(r, _COPY, x), x)


def _anything(r: Random) -> str:
    u = r.random()
    if u < 0.4:
        return r.choice(THINGS + ADJECTIVES)
    if u < 0.55:
        return r.choice(NAMES + CITIES)
    if u < 0.7:
        return str(r.randint(0, 10 ** r.randint(1, 4)))
    if u < 0.75:
        return r.choice(THINGS).upper()
    return invent_word(r)


def reverse(r: Random) -> Example:
    n = r.randint(3, 6)
    kind = r.random()
    if kind < 0.55:
        items = r.sample(THINGS + COLOURS, n)
    elif kind < 0.7:
        items = r.sample(NAMES, n)
    elif kind < 0.85:
        items = [str(r.randint(0, 9)) for _ in range(n + 1)]
    else:
        items = [r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(n + 1)]
    gap = " " if kind >= 0.7 and r.random() < 0.5 else ", "
    return Example("reverse", " ".join(items), ask(r, _REVERSE, gap.join(items)), gap.join(items[::-1]))


def case(r: Random) -> Example:
    words = r.sample(THINGS + COLOURS, r.randint(2, 4))
    x = " ".join(words)
    if r.random() < 0.5:
        return Example("case", x, ask(r, _UPPER, x), x.upper())
    shown = x.upper() if r.random() < 0.8 else x.title()
    return Example("case", x, ask(r, _LOWER, shown), x)


def sort_words(r: Random) -> Example:
    items = r.sample(NAMES if r.random() < 0.2 else THINGS + COLOURS, r.randint(3, 5))
    back = r.random() < 0.25
    answer = sorted(items, reverse=back)
    return Example(
        "sort_words", " ".join(sorted(items)), ask(r, _SORT_BACK if back else _SORT, ", ".join(items)), ", ".join(answer)
    )
