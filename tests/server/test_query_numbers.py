"""Whole numbers in addresses: every parameter that is one reads it the same way, and refuses anything else by its name."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from scripted import Scripted

import thalweg.server

LARGE = "000000001" + "9" * 9000
"""More digits than Python reads, and the first nine of them are a small number."""
WRONG = [
    LARGE,
    "9" * 40,
    "0" * 40,
    "1.0",
    "1e2",
    "0x1",
    "1_0",
    " 1",
    "+1",
    "--1",
    "-",
    "",
    "ten",
    "٣",
    "½",
    "1\n",
    "inf",
    "null",
]


class Resting(Scripted):
    async def sleep(self, level: int, mode: str) -> None:
        self.slept = level


@pytest.fixture(scope="module")
def running() -> Any:
    from conftest import Running

    from thalweg.server.settings import ServerSettings

    made = Running(Resting("hello"), ServerSettings(server_dev_mode=True))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def response(running: Any) -> str:
    body = {"model": "fake", "input": "hello", "stream": True, "background": True}
    text = running.post("/v1/responses", body).text
    return str(text.partition('"id":"')[2].partition('"')[0])


PLACES = {
    "files": ("GET", "/v1/files?limit=", "limit", "2"),
    "batches": ("GET", "/v1/batches?limit=", "limit", "2"),
    "items": ("GET", "/v1/responses/RESPONSE/input_items?limit=", "limit", "2"),
    "events": ("GET", "/v1/responses/RESPONSE?stream=true&starting_after=", "starting_after", "0"),
    "sleep": ("POST", "/sleep?level=", "level", "1"),
}


def ask(running: Any, response: str, place: str, value: str) -> Any:
    from urllib.parse import quote

    method, path, _, _ = PLACES[place]
    return running.http.request(method, path.replace("RESPONSE", response) + quote(value))


@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_whole_number_is_refused_by_the_parameters_name(running: Any, response: str, place: str) -> None:
    for value in WRONG:
        reply = ask(running, response, place, value)
        assert reply.status_code == 400, (value[:40], reply.text[:200])
        error = reply.json()["error"]
        assert error["param"] == PLACES[place][2]
        assert len(error["message"]) < 200


@pytest.mark.parametrize("place", PLACES)
def test_a_whole_number_is_read(running: Any, response: str, place: str) -> None:
    for value in (PLACES[place][3], "00" + PLACES[place][3]):
        reply = ask(running, response, place, value)
        assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("place", ["files", "batches", "items"])
def test_a_page_has_bounds(running: Any, response: str, place: str) -> None:
    for value in ("0", "-1", "100000000", "2147483648"):
        reply = ask(running, response, place, value)
        assert reply.status_code == 400
        assert "between 1 and" in reply.json()["error"]["message"]


def test_no_route_makes_a_number_of_an_address_by_itself() -> None:
    """The tests above know the parameters of today. One reader has them all, and this finds the next that is read past it."""
    here = Path(thalweg.server.__file__).parent
    past = []
    for file in here.rglob("*.py"):
        source = file.read_text()
        if "query_params" in source and file.name != "query.py":
            calls = [ast.unparse(n) for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call)]
            past += [f"{file.name}: {c}" for c in calls if c.startswith(("int(", "float("))]
    assert past == ["files.py: int(length)"], "this is the length of a body, which `wire` has read"
