"""Items of kept responses that a client names instead of sending them again (`item_reference`)."""

from __future__ import annotations

from typing import Any

from thalweg.server.errors import ApiError
from thalweg.server.responses.items import PREFIXES
from thalweg.server.responses.protocol import Item
from thalweg.server.responses.store import ResponseStore

RESPONSE = "resp_"
HEX = 32
"""Letters of a response's id after its prefix."""


def item_id(response: str, kind: str, number: int) -> str:
    """The id of an output item. It names its response, so no index is kept to find one by the other.

    response: the response's id. kind: the item's type. number: its position in the output."""
    return f"{PREFIXES[kind]}_{response.removeprefix(RESPONSE)}{number:02x}"


def resolve(store: ResponseStore, owner: str, items: list[Item]) -> list[Item]:
    """`items`, each reference replaced by its output item. ApiError 404 for an item not stored for `owner`, 400 for a repeated
    one: a short request must not expand to more text than is stored."""
    outputs: dict[str, dict[str, Any]] = {}
    """Output items of the responses that were read, by id."""
    out: list[Item] = []
    seen: set[str] = set()
    for i, item in enumerate(items):
        if item.type != "item_reference":
            out.append(item)
            continue
        id = item.id or ""
        if id in seen:
            raise ApiError(f"input[{i}].id: the item {id[:80]!r} is referenced twice; leave one out", f"input[{i}].id")
        seen.add(id)
        if id not in outputs:
            outputs |= _read_output(store, owner, id)
        if id not in outputs:
            raise ApiError(
                f"input[{i}].id: no item {id[:80]!r} is kept here; send the item itself, or answer with store=true",
                f"input[{i}].id",
                404,
            )
        out.append(Item.model_validate(outputs[id]))
    return out


def _read_output(store: ResponseStore, owner: str, id: str) -> dict[str, dict[str, Any]]:
    """Output items of the response that an item's id names, by id. Empty: it is not kept."""
    turn = store.get(owner, RESPONSE + id.partition("_")[2][:HEX])
    return {} if turn is None or not turn.body else {item["id"]: item for item in turn.response()["output"]}
