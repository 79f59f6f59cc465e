"""Tasks with tools: choose one and fill its arguments, or answer from a tool's result."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from thalweg.nano import words as w
from thalweg.nano.example import Example, call_text
from thalweg.nano.talk import NO_TOOL

Values = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ToolKind:
    """A kind of tool: possible names, purpose, parameters (possible names, JSON type), users' requests, and the generator of
    values."""

    names: tuple[str, ...]
    about: str
    parameters: tuple[tuple[tuple[str, ...], str], ...]
    asks: tuple[str, ...]
    draw: Callable[[Random], Values]


_PLACE = ("city", "location", "place")
_WHO = ("to", "name", "person", "recipient")
KINDS: tuple[ToolKind, ...] = (
    ToolKind(
        ("get_weather", "weather", "weather_now"),
        "Get the weather in a city",
        ((_PLACE, "string"),),
        ("What is the weather in {0}?", "How is the weather in {0}?", "Is it raining in {0}?", "Weather in {0}, please."),
        lambda r: (w.city(r),),
    ),
    ToolKind(
        ("send_message", "send_text", "message"),
        "Send a message to a person",
        ((_WHO, "string"), (("text", "message", "body"), "string")),
        ("Send {0} the message: {1}", "Tell {0}: {1}", 'Write "{1}" to {0}.', "Message {0}: {1}"),
        lambda r: (
            w.name(r),
            r.choice(("see you {d}", "I am late", "happy birthday", "call me", "the {t} is here")).format(
                d=r.choice(w.DAYS), t=r.choice(w.THINGS)
            ),
        ),
    ),
    ToolKind(
        ("add", "add_numbers", "sum"),
        "Add two numbers",
        ((("a", "x", "first"), "integer"), (("b", "y", "second"), "integer")),
        ("What is {0} plus {1}?", "Add {0} and {1}.", "Sum of {0} and {1}?"),
        lambda r: (r.randint(100, 9999), r.randint(100, 9999)),
    ),
    ToolKind(
        ("set_timer", "start_timer", "timer"),
        "Start a timer",
        ((("minutes", "duration", "time"), "integer"),),
        ("Set a timer for {0} minutes.", "Wake me in {0} minutes.", "Start a timer of {0} minutes."),
        lambda r: (r.randint(2, 90),),
    ),
    ToolKind(
        ("play_music", "play_song", "play"),
        "Play music",
        ((("title", "song", "artist"), "string"),),
        ("Play {0}.", "I want to hear {0}.", "Put on some music by {0}."),
        lambda r: (f"{w.name(r)} {w.invent_word(r).capitalize()}" if r.random() < 0.5 else w.name(r),),
    ),
    ToolKind(
        ("book_table", "reserve_table", "book_restaurant"),
        "Book a table at a restaurant",
        ((("day", "date"), "string"), (("people", "guests", "persons"), "integer")),
        ("Book a table for {1} on {0}.", "On {0} we need a table for {1} people.", "Reserve a table for {1} people on {0}."),
        lambda r: (r.choice(w.DAYS), r.randint(2, 20)),
    ),
    ToolKind(
        ("find_train", "search_trains", "trains"),
        "Find a train between two cities",
        ((("from", "start", "origin"), "string"), (("to", "goal", "destination"), "string")),
        ("Find a train from {0} to {1}.", "How do I get from {0} to {1} by train?", "I need a train to {1} from {0}."),
        lambda r: tuple(r.sample(w.CITIES, 2)),
    ),
    ToolKind(
        ("switch_light", "set_light", "light"),
        "Switch a light on or off",
        ((("room", "where"), "string"), (("on", "state"), "boolean")),
        ("QKPrologue {2} the light in the {0}.", "Switch {2} the {0} light.", "Light {2} in the {0}, please."),
        lambda r: (r.choice(w.PLACES), on := r.random() < 0.5, "on" if on else "off"),
    ),
    ToolKind(
        ("buy", "order_item", "add_to_cart"),
        "Buy things in a shop",
        ((("item", "product", "thing"), "string"), (("count", "quantity", "number"), "integer")),
        ("Buy {1} {0}s.", "I need {1} {0}s.", "Order {1} {0}s for me."),
        lambda r: (r.choice(w.THINGS), r.randint(2, 50)),
    ),
    ToolKind(
        ("search", "web_search", "find"),
        "Search the web",
        ((("query", "text", "q"), "string"),),
        ("Search the web for {0}.", "Look up {0}.", "Find something about {0}."),
        lambda r: (
            f"{r.choice(w.ADJECTIVES + w.COLOURS)} {r.choice(w.THINGS)}s in {w.city(r)}"
            if r.random() < 0.5
            else r.choice(w.THINGS),
        ),
    ),
    ToolKind(
        ("call_phone", "phone", "make_call"),
        "Call a person by phone",
        ((_WHO, "string"),),
        ("Call {0}.", "Phone {0} for me.", "I want to speak to {0} on the phone."),
        lambda r: (w.name(r),),
    ),
    ToolKind(
        ("create_event", "add_event", "calendar_add"),
        "Add an event to the calendar",
        ((("title", "event", "what"), "string"), (("day", "date"), "string")),
        ("Put {0} in my calendar on {1}.", "Add the event {0} on {1}.", "On {1} I have {0}; note it in the calendar."),
        lambda r: (f"{r.choice(('dinner', 'lunch', 'a meeting', 'a walk'))} with {w.name(r)}", r.choice(w.DAYS)),
    ),
)
_NO_TOOL_ASKS = (
    "Paint my {t} {c}.",
    "Open the {p}.",
    "Feed the {a}.",
    "Clean the {p}.",
    "Wash my {t}.",
    "Repair the {t}.",
    "Cook {f} for me.",
)


def _definition(r: Random, kind: ToolKind) -> dict[str, Any]:
    """The tool's definition in a chat request, under one of its names."""
    parameters = {r.choice(names): {"type": t} for names, t in kind.parameters}
    return {
        "type": "function",
        "function": {
            "name": r.choice(kind.names),
            "description": kind.about,
            "parameters": {"type": "object", "properties": parameters, "required": list(parameters)},
        },
    }


def call(r: Random) -> Example:
    """One to three tools, and a request for one. One request in eight needs no tool."""
    kinds = r.sample(KINDS, r.choice((1, 2, 2, 3)))
    tools = tuple(_definition(r, k) for k in kinds)
    if r.random() < 0.125:
        text = r.choice(_NO_TOOL_ASKS).format(
            t=r.choice(w.THINGS), c=r.choice(w.COLOURS), p=r.choice(w.PLACES), a=r.choice(w.PETS), f=r.choice(w.FOODS)
        )
        return Example("tool_call", text, ({"role": "user", "content": text},), NO_TOOL, tools)
    i = r.randrange(len(kinds))
    function = tools[i]["function"]
    values = kinds[i].draw(r)
    text = r.choice(kinds[i].asks).format(*values)
    arguments = dict(zip(function["parameters"]["properties"], values, strict=False))
    answer = call_text(function["name"], arguments)
    return Example("tool_call", f"{kinds[i].about} {values}", ({"role": "user", "content": text},), answer, tools, "call")


def _weather(r: Random) -> tuple[Any, ...]:
    sky = r.choice(("sunny", "cloudy", "rainy", "windy", "snowy"))
    degrees, place = r.randint(0, 39), w.city(r)
    return 0, (place,), {"degrees": degrees, "sky": sky}, f"It is {degrees} degrees and {sky} in {place}."


def _sum(r: Random) -> tuple[Any, ...]:
    a, b = r.randint(100, 9999), r.randint(100, 9999)
    return 2, (a, b), {"result": a + b}, f"The result is {a + b}."


def _train(r: Random) -> tuple[Any, ...]:
    start, goal = r.sample(w.CITIES, 2)
    hour, price = r.randint(5, 23), r.randint(10, 150)
    return 6, (start, goal), {"hour": hour, "price": price}, f"There is a train to {goal} at {hour} for {price} euros."


def _shop(r: Random) -> tuple[Any, ...]:
    thing, n, price = r.choice(w.THINGS), r.randint(2, 50), r.randint(2, 500)
    return 8, (thing, n), {"price": price}, f"I bought {n} {thing}s for {price} euros."


def result(r: Random) -> Example:
    """A tool has returned a result. The answer states it in a sentence."""
    index, values, returned, answer = r.choice((_weather, _sum, _train, _shop))(r)
    kind = KINDS[index]
    tool = _definition(r, kind)
    function = tool["function"]
    arguments = dict(zip(function["parameters"]["properties"], values, strict=True))
    messages = (
        {"role": "user", "content": r.choice(kind.asks).format(*values)},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": function["name"], "arguments": json.dumps(arguments, ensure_ascii=False)},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": json.dumps(returned)},
    )
    return Example("tool_result", answer, messages, answer, (tool,))
