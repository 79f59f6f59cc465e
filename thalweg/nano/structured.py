"""Tasks from a sentence to JSON: the fields named by the user, or those of a JSON schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from thalweg.nano import words as w
from thalweg.nano.example import Example

Record = tuple[str, dict[str, Any], dict[str, Any]]
"""(sentence, its fields, JSON schema of each field)."""

STRING: dict[str, Any] = {"type": "string"}
INTEGER: dict[str, Any] = {"type": "integer"}
BOOLEAN: dict[str, Any] = {"type": "boolean"}

_EXTRACT = (
    "{x}\nExtract {f} as JSON.",
    "Extract {f} as JSON: {x}",
    "{x}\nGive me a JSON object with {f}.",
    "Write {f} as JSON.\n{x}",
    "Read this: {x}\nReturn JSON with the keys {f}.",
)
_FILL = (
    "Fill this JSON schema: {s}\nText: {x}",
    "{x}\nAnswer with JSON of this schema: {s}",
    "Schema: {s}\n{x}",
    "Text: {x}\nSchema: {s}\nJSON:",
)


def _someone(r: Random) -> Record:
    who, place, age, job = w.name(r), w.city(r), r.randint(3, 99), r.choice(w.JOBS)
    text = r.choice(
        (
            f"{who} is {age} years old, lives in {place} and works as a {job}.",
            f"{who}, {age}, is a {job} from {place}.",
            f"My friend {who} is a {job}. {who} is {age} and lives in {place}.",
            f"In {place} there is a {job} of {age} years called {who}.",
        )
    )
    fields = {"name": who, "age": age, "city": place, "job": job}
    return text, fields, {"name": STRING, "age": INTEGER, "city": STRING, "job": STRING}


def _order(r: Random) -> Record:
    who, thing, colour = w.name(r), r.choice(w.THINGS), r.choice(w.COLOURS)
    n, price, paid = r.randint(2, 60), r.randint(1, 99), r.random() < 0.5
    text = r.choice(
        (
            f"{who} ordered {n} {colour} {thing}s for {price} euros.",
            f"Please send {n} {thing}s in {colour} to {who}; the price is {price} euros.",
            f"An order of {who}: {n} {thing}s, {colour}, {price} euros.",
            f"For {price} euros {who} bought {n} {thing}s. They are {colour}.",
        )
    )
    text += " " + r.choice(("It is paid.", "The money is here.") if paid else ("It is not paid.", "The money is not here."))
    fields = {"customer": who, "item": thing, "colour": colour, "quantity": n, "price": price, "paid": paid}
    kinds = {"customer": STRING, "item": STRING, "quantity": INTEGER, "price": INTEGER, "paid": BOOLEAN}
    return text, fields, kinds | {"colour": STRING}


def _event(r: Random) -> Record:
    who, day, hour, place = w.name(r), r.choice(w.DAYS), r.randint(7, 22), r.choice(w.PLACES)
    what = r.choice(("meeting", "party", "lesson", "concert", "dinner", "game", "talk"))
    text = r.choice(
        (
            f"The {what} with {who} is on {day} at {hour} in the {place}.",
            f"{who} invites you to a {what} in the {place} on {day} at {hour}.",
            f"On {day} at {hour} {who} has a {what} in the {place}.",
            f"A {what} in the {place}: {day}, {hour} o'clock, with {who}.",
        )
    )
    fields = {"event": what, "day": day, "hour": hour, "place": place, "host": who}
    return text, fields, {"event": STRING, "day": STRING, "hour": INTEGER, "place": STRING, "host": STRING}


def _travel(r: Random) -> Record:
    who, start, goal = w.name(r), *r.sample(w.CITIES, 2)
    day, by, price = r.choice(w.DAYS), r.choice(("train", "bus", "plane", "car", "ship")), r.randint(10, 999)
    text = r.choice(
        (
            f"{who} goes from {start} to {goal} by {by} on {day} for {price} euros.",
            f"A {by} ticket from {start} to {goal} on {day} for {who} costs {price} euros.",
            f"On {day} {who} takes the {by} to {goal}, from {start}, for {price} euros.",
        )
    )
    fields = {"traveller": who, "from": start, "to": goal, "day": day, "by": by, "price": price}
    enum = {"type": "string", "enum": ["train", "bus", "plane", "car", "ship"]}
    return text, fields, {"traveller": STRING, "from": STRING, "to": STRING, "day": STRING, "by": enum, "price": INTEGER}


def _pet(r: Random) -> Record:
    who, pet, called, age = w.name(r), r.choice(w.PETS), w.name(r), r.randint(1, 19)
    colour, size = r.choice(w.COLOURS), r.choice(("small", "medium", "large"))
    text = r.choice(
        (
            f"{who} has a {size} {colour} {pet} called {called}, which is {age} years old.",
            f"{called} is a {colour} {pet} of {size} size, {age} years old, and belongs to {who}.",
            f"The {pet} of {who} is {colour}, {size}, {age} years old and is called {called}.",
        )
    )
    fields = {"owner": who, "animal": pet, "name": called, "age": age, "colour": colour, "size": size}
    size_kind = {"type": "string", "enum": ["small", "medium", "large"]}
    return (
        text,
        fields,
        {"owner": STRING, "animal": STRING, "name": STRING, "age": INTEGER, "colour": STRING, "size": size_kind},
    )


_RECORDS: tuple[Callable[[Random], Record], ...] = (_someone, _order, _event, _travel, _pet)


def _some(r: Random, fields: dict[str, Any]) -> list[str]:
    """Two to four of the fields, in any order."""
    return r.sample(list(fields), r.randint(2, min(4, len(fields))))


def extract(r: Random) -> Example:
    text, fields, _ = r.choice(_RECORDS)(r)
    wanted = _some(r, fields)
    answer = json.dumps({f: fields[f] for f in wanted}, ensure_ascii=False)
    content = r.choice(_EXTRACT).format(x=text, f=w.join_words(wanted))
    return Example("extract_json", text, ({"role": "user", "content": content},), answer, check="json")


def schema(r: Random) -> Example:
    text, fields, kinds = r.choice(_RECORDS)(r)
    wanted = _some(r, fields)
    stated = {"type": "object", "properties": {f: kinds[f] for f in wanted}, "required": wanted}
    answer = json.dumps({f: fields[f] for f in wanted}, ensure_ascii=False)
    content = r.choice(_FILL).format(x=text, s=json.dumps(stated))
    return Example("fill_schema", text, ({"role": "user", "content": content},), answer, check="json")
