"""Routes of weight updates: there only when asked for, and what they say reaches the engine."""

from __future__ import annotations

import httpx
from fake_engine import FakeEngine

from thalweg.server.app import make_app
from thalweg.server.settings import ServerSettings

ROUTES = ("/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update", "/pause")


class Trained(FakeEngine):
    """Keeps the calls."""

    receives_weights = True

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[object] = []

    async def init_weight_transfer_engine(self, info: object) -> None:
        self.calls.append(info)

    async def start_weight_update(self, is_checkpoint_format: bool) -> None:
        self.calls.append(is_checkpoint_format)

    async def update_weights(self, info: object) -> None:
        self.calls.append(info)

    async def finish_weight_update(self) -> None:
        self.weights_version += 1

    async def pause_generation(self, mode: str, *, clear_cache: bool) -> None:
        self.calls.append(mode)


def client(engine: FakeEngine) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(make_app(engine, ServerSettings())), base_url="http://localhost")


async def test_there_are_none_without_the_flag():
    async with client(FakeEngine()) as http:
        assert [(await http.post(path, json={})).status_code for path in ROUTES] == [404] * len(ROUTES)


async def test_an_update_changes_the_fingerprint():
    engine = Trained()
    async with client(engine) as http:
        body = {"prompt": "a", "max_tokens": 1}
        before = (await http.post("/v1/completions", json=body)).json()["system_fingerprint"]
        await http.post("/init_weight_transfer_engine", json={"init_info": {"master_port": 1}})
        await http.post("/pause?mode=keep")
        await http.post("/start_weight_update")
        await http.post("/update_weights", json={"update_info": {"names": ["a"]}})
        assert engine.calls == [{"master_port": 1}, "keep", True, {"names": ["a"]}]
        assert (await http.post("/finish_weight_update")).json()["weight_version"] == 1
        assert (await http.post("/v1/completions", json=body)).json()["system_fingerprint"] != before
        wrong = await http.post("/update_weights", json={})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "update_info")
