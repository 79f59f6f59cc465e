"""Tasks on numbers: order, counting, sums, comparison."""

from __future__ import annotations

from random import Random

from thalweg.nano.example import Example
from thalweg.nano.strings import ask
from thalweg.nano.words import COLOURS, NAMES, THINGS

_UP = (
    "Sort: {x}",
    "Sort these numbers: {x}",
    "Sort from smallest to largest: {x}",
    "Put in ascending order: {x}",
    "Order from low to high: {x}",
    "Please sort the numbers {x}",
)
_DOWN = (
    "Sort from largest to smallest: {x}",
    "Put in descending order: {x}",
    "Order from high to low: {x}",
    "Sort downwards: {x}",
)
_HOW_MANY = (
    "How many words are there: {x}",
    "Count the words: {x}",
    "How many items are in this list: {x}",
    "Count: {x}",
    "How long is this list: {x}",
)
_HOW_OFTEN = (
    "How many times does {w} occur in: {x}",
    "Count {w} in: {x}",
    "How often do you see {w} here: {x}",
    "How many times is {w} in this list: {x}",
)
_ADD = ("What is {a} + {b}?", "{a} + {b}", "{a} + {b} =", "What is {a} plus {b}?", "Add {a} and {b}.", "How much is {a} + {b}?")
_SUBTRACT = (
    "What is {a} - {b}?",
    "{a} - {b}",
    "{a} - {b} =",
    "What is {a} minus {b}?",
    "Subtract {b} from {a}.",
    "How much is {a} - {b}?",
)
_ADD_STORY = (
    "{n} has {a} {w}s and gets {b} more. How many does {n} have?",
    "There are {a} {w}s in a box. {n} adds {b}. How many are there?",
    "{n} buys {a} {w}s on one day and {b} on the next. How many in all?",
)
_SUBTRACT_STORY = (
    "{n} has {a} {w}s and gives away {b}. How many are left?",
    "There are {a} {w}s in a box. {n} takes {b}. How many are left?",
    "{n} had {a} {w}s and lost {b}. How many are left?",
)
_LARGER = (
    "Which is larger, {x}?",
    "Which number is bigger: {x}?",
    "What is the largest of {x}?",
    "Find the largest number: {x}",
)
_SMALLER = (
    "Which is smaller, {x}?",
    "Which number is less: {x}?",
    "What is the smallest of {x}?",
    "Find the smallest number: {x}",
)
_IS_LARGER = ("Is {a} larger than {b}?", "Is {a} greater than {b}?", "Is {a} more than {b}?", "{a} > {b}?")
_IS_SMALLER = ("Is {a} smaller than {b}?", "Is {a} less than {b}?", "Is {a} below {b}?", "{a} < {b}?")


def sort(r: Random) -> Example:
    items = r.sample(range(100), r.randint(3, 5))
    down = r.random() < 0.3
    shown, answer = (", ".join(map(str, i)) for i in (items, sorted(items, reverse=down)))
    return Example("sort_numbers", str(sorted(items)), ask(r, _DOWN if down else _UP, shown), answer)


def count(r: Random) -> Example:
    pool = THINGS + COLOURS
    if r.random() < 0.5:
        items = r.sample(pool, r.randint(1, 9))
        return Example("count", " ".join(items), ask(r, _HOW_MANY, ", ".join(items)), str(len(items)))
    letters = r.random() < 0.3
    pool = tuple("abcdefghijklmnopqrstuvwxyz") if letters else pool
    wanted, *others = r.sample(pool, 4)
    times = r.randint(0, 5)
    items = [wanted] * times + [r.choice(others) for _ in range(r.randint(1 if times else 2, 5))]
    r.shuffle(items)
    text = r.choice(_HOW_OFTEN).replace("{w}", wanted)
    x = (" " if letters else ", ").join(items)
    return Example("count", f"{wanted}: {' '.join(items)}", ask(r, (text,), x), str(times))


def arithmetic(r: Random) -> Example:
    """Sums and differences of two numbers up to 99, at least one with two digits, bare or in a story. Pairs of numbers are held
    out, in either order. `digits` has the sums that the model memorises."""
    a, b = r.randint(10, 99), r.randint(0, r.choice((9, 20, 99, 99)))
    return _sum(r, *((a, b) if r.random() < 0.5 else (b, a)))


def digits(r: Random) -> Example:
    """A sum or difference of two digits. Not a task: training sees every pair."""
    return _sum(r, r.randint(0, 9), r.randint(0, 9))


def _sum(r: Random, a: int, b: int) -> Example:
    add = r.random() < 0.55
    if not add and a < b:
        a, b = b, a
    if r.random() < 0.3:
        form = r.choice(_ADD_STORY if add else _SUBTRACT_STORY)
        text = form.format(
            a=a, b=b, n=r.choice(NAMES), w=r.choice(("apple", "book", "coin", "egg", "pen", "stone", "cup", "star"))
        )
    else:
        text = r.choice(_ADD if add else _SUBTRACT).format(a=a, b=b)
        if r.random() < 0.15:
            text = text.replace(" + ", "+").replace(" - ", "-")
    answer = a + b if add else a - b
    key = f"{min(a, b)} {'+' if add else '-'} {max(a, b)}"
    return Example("arithmetic", key, ({"role": "user", "content": text},), str(answer))


def compare(r: Random) -> Example:
    top = 10 ** r.randint(1, 4) - 1
    if r.random() < 0.5:
        a, b = r.randint(0, top), r.randint(0, top)
        if r.random() < 0.4:
            b = max(0, a + r.randint(-5, 5))
        larger = r.random() < 0.5
        text = r.choice(_IS_LARGER if larger else _IS_SMALLER).format(a=a, b=b)
        answer = "Yes" if (a > b if larger else a < b) else "No"
        return Example("compare", f"{min(a, b)} {max(a, b)}", ({"role": "user", "content": text},), answer)
    items = r.sample(range(max(top, 20)), r.choice((2, 2, 2, 3)))
    if r.random() < 0.3:
        items = r.sample(range(items[0], items[0] + 12), len(items))
    larger = r.random() < 0.5
    x = f"{', '.join(map(str, items[:-1]))} or {items[-1]}" if r.random() < 0.6 else ", ".join(map(str, items))
    key = " ".join(map(str, sorted(items)))
    return Example("compare", key, ask(r, _LARGER if larger else _SMALLER, x), str(max(items) if larger else min(items)))
