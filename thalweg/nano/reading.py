"""Tasks on previous text: questions on a passage, a needle in a long one, a name from earlier turns, and sentiment."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from thalweg.nano import words as w
from thalweg.nano.example import Example, Message
from thalweg.nano.words import article, city, invent_word, name

Fact = tuple[str, str, str]
"""(sentence, question about it, answer)."""

_FILLER = (
    "The {t} in the {p} is {a}.",
    "It was a {a} day in {m}.",
    "Nobody looked at the {t}.",
    "A {a} {t} stood near the {p}.",
    "The {p} was {a} and {b}.",
    "On {d} the {p} is closed.",
    "Some people like the {t}.",
    "There was rain over {c} all night.",
    "The road to {c} is {a}.",
    "We talked about the {t} for an hour.",
)


def _person(r: Random, who: str) -> Fact:
    """A fact about a person."""
    kind = r.randrange(9)
    if kind == 0:
        place = city(r)
        return f"{who} lives in {place}.", f"Where does {who} live?", place
    if kind == 1:
        job = r.choice(w.JOBS)
        return f"{who} works as a {job}.", f"What is the job of {who}?", job
    if kind == 2:
        age = r.randint(3, 99)
        return f"{who} is {age} years old.", f"How old is {who}?", str(age)
    if kind == 3:
        pet = r.choice(w.PETS)
        return f"{who} has a {pet}.", f"What pet does {who} have?", pet
    if kind == 4:
        food = r.choice(w.FOODS)
        return f"{who} likes to eat {food}.", f"What does {who} like to eat?", food
    if kind == 5:
        colour, thing = r.choice(w.COLOURS), r.choice(w.THINGS)
        return f"{who} has a {colour} {thing}.", f"What colour is the {thing} of {who}?", colour
    if kind == 6:
        place, thing = r.choice(w.PLACES), r.choice(w.THINGS)
        return f"{who} put the {thing} in the {place}.", f"Where did {who} put the {thing}?", place
    if kind == 7:
        day = r.choice(w.DAYS)
        return f"{who} comes back on {day}.", f"When does {who} come back?", day
    thing = r.choice(w.THINGS)
    return f"{who} bought {article(thing)}.", f"What did {who} buy?", thing


def _secret(r: Random, who: str) -> Fact:
    """A fact to hide in a long text."""
    kind = r.randrange(3)
    if kind == 0:
        code = str(r.randint(100, 9999))
        return f"The secret code of {who} is {code}.", f"What is the secret code of {who}?", code
    if kind == 1:
        word = invent_word(r)
        return f"The password of {who} is {word}.", f"What is the password of {who}?", word
    thing = r.choice(w.THINGS)
    return f"The magic word of {who} is {thing}.", f"What is the magic word of {who}?", thing


def _filler(r: Random) -> str:
    return r.choice(_FILLER).format(
        t=r.choice(w.THINGS),
        p=r.choice(w.PLACES),
        a=r.choice(w.ADJECTIVES),
        b=r.choice(w.ADJECTIVES),
        c=r.choice(w.CITIES),
        d=r.choice(w.DAYS),
        m=r.choice(w.MONTHS),
    )


def passage(r: Random) -> Example:
    """Three to six sentences about two to four people, and one question."""
    people = _people(r, r.randint(2, 4))
    facts: dict[str, Fact] = {}
    for _ in range(r.randint(3, 6)):
        fact = _person(r, r.choice(people))
        facts.setdefault(fact[1], fact)
    reported = list(facts.values())
    text = " ".join(f[0] for f in reported)
    _, question, answer = r.choice(reported)
    content = r.choice(
        (f"{text}\n{question}", f"Passage: {text}\nQuestion: {question}", f"{question}\n{text}", f"Read: {text}\n\n{question}")
    )
    return Example("passage", f"{text} {question}", ({"role": "user", "content": content},), answer)


NEEDLE_SENTENCES = (8, 140)
"""Fewest and most sentences of a long text, about 100 to 1500 of the model's tokens."""


def haystack(r: Random, sentences: int, needles: int) -> tuple[str, list[Fact]]:
    """(long text of filler sentences, facts hidden in it)."""
    lines = [_filler(r) for _ in range(sentences)]
    facts = [_secret(r, who) for who in _people(r, needles)]
    for f in facts:
        lines.insert(r.randint(0, len(lines)), f[0])
    return " ".join(lines), facts


def needle(r: Random) -> Example:
    """One question about one of three secrets in a long text. Secrets with their owners are held out."""
    low, high = NEEDLE_SENTENCES
    text, facts = haystack(r, round(low * (high / low) ** r.random()), 3)
    _, question, answer = r.choice(facts)
    return Example("needle", f"{question} {answer}", ({"role": "user", "content": f"{text}\n{question}"},), answer)


def _people(r: Random, n: int) -> list[str]:
    people: dict[str, None] = {}
    while len(people) < n:
        people[name(r)] = None
    return list(people)


_HELLO = (
    "My name is {n}.",
    "Hi, I am {n}.",
    "Hello, my name is {n}.",
    "I am {n}.",
    "Hi! My name is {n}.",
    "You can call me {n}.",
)
_WHO = ("What is my name?", "Do you remember my name?", "Who am I?", "Tell me my name.", "What am I called?", "Say my name.")
Told = tuple[tuple[str, ...], str, tuple[str, ...], str]
"""(the user's statements, the acknowledgement, the user's questions, the answer)."""
_MORE: tuple[tuple[Callable[[Random], str], Told], ...] = (
    (
        city,
        (
            ("I live in {x}.", "My home is in {x}.", "I am from {x}."),
            "Good to know: you live in {x}.",
            ("Where do I live?", "Which city do I live in?", "Where is my home?"),
            "You live in {x}.",
        ),
    ),
    (
        lambda r: r.choice(w.COLOURS),
        (
            ("My favourite colour is {x}.", "I like the colour {x} best."),
            "Good to know: your favourite colour is {x}.",
            ("What is my favourite colour?", "Which colour do I like?"),
            "Your favourite colour is {x}.",
        ),
    ),
    (
        lambda r: r.choice(w.PETS),
        (
            ("I have a {x}.", "My pet is a {x}."),
            "Good to know: you have a {x}.",
            ("What pet do I have?", "Which animal do I have?"),
            "You have a {x}.",
        ),
    ),
)


def hello(r: Random, who: str) -> list[Message]:
    """The user gives a name, and the model greets."""
    return [
        {"role": "user", "content": r.choice(_HELLO).format(n=who)},
        {"role": "assistant", "content": f"Hello, {who}! How can I help you?"},
    ]


def recall(r: Random) -> Example:
    """The user gives a name and up to two more facts. After other turns, the question is about one fact."""
    who = name(r)
    turns = [hello(r, who)]
    requested: list[tuple[tuple[str, ...], str]] = [(_WHO, f"Your name is {who}.")]
    facts = [who]
    for draw, (says, noted, asks, answer) in r.sample(_MORE, r.choice((0, 1, 1, 2))):
        x = draw(r)
        facts.append(x)
        turns.append(
            [{"role": "user", "content": r.choice(says).format(x=x)}, {"role": "assistant", "content": noted.format(x=x)}]
        )
        requested.append((asks, answer.format(x=x)))
    r.shuffle(turns)
    idle = [_idle(r) for _ in range(r.randint(0, 2))]
    for turn in idle:
        turns.insert(r.randint(0, len(turns)), turn)
    asks, answer = requested[0] if r.random() < 0.5 else r.choice(requested)
    messages = [m for t in turns for m in t]
    messages.append({"role": "user", "content": r.choice(asks)})
    key = " ".join(sorted(facts)) + "".join(str(t[0]["content"]) for t in idle)
    return Example("recall", key, tuple(messages), answer)


def _idle(r: Random) -> list[Message]:
    a, b = r.randint(1, 20), r.randint(1, 20)
    question, answer = r.choice(
        (
            (f"What is {a} + {b}?", str(a + b)),
            ("Thank you!", "You are welcome!"),
            ("How are you?", "I am fine, thank you. How can I help you?"),
            (f"Repeat: {(x := invent_word(r))}", x),
        )
    )
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


_ASK_MOOD = (
    'Is this review positive or negative? "{x}"',
    "Positive or negative: {x}",
    "What is the sentiment? {x}",
    "Sentiment of this text: {x}",
    "Classify as positive or negative: {x}",
)
_SUBJECTS = w.words("food room service hotel film book staff music coffee weather beach town garden game lesson trip show bed")
_MOODS = (
    "The {s} was {a}.",
    "The {s} was really {a}.",
    "What a {a} {s}!",
    "I think the {s} is {a}.",
    "We found the {s} {a} and {b}.",
    "The {s} was {a}, and so was the {t}.",
    "My {s} was very {a}.",
)
_NOT = ("The {s} was not {a}.", "I do not think the {s} is {a}.", "The {s} was not {a} at all.", "Nobody said the {s} was {a}.")


def sentiment(r: Random) -> Example:
    good = r.random() < 0.5
    negated = r.random() < 0.3
    used = (good != negated and w.GOOD) or w.BAD
    a, b = r.sample(used, 2)
    s, t = r.sample(_SUBJECTS, 2)
    x = r.choice(_NOT if negated else _MOODS).format(s=s, t=t, a=a, b=b).replace(" a a", " an a").replace(" a e", " an e")
    if r.random() < 0.25:
        who = r.choice(w.NAMES)
        x = f"{who} was there on {r.choice(w.DAYS)}. {x}"
    text = r.choice(_ASK_MOOD).format(x=x)
    return Example("sentiment", x, ({"role": "user", "content": text},), "Positive" if good else "Negative")
