"""Routes of weight updates: there only when asked for, and what they say reaches the engine."""

from __future__ import annotations

import asyncio

import httpx
from fake_engine import FakeEngine

from thalweg.engine.client.weight_transfer import WeightTransferMethods
from thalweg.server.app import make_app
from thalweg.server.settings import ServerSettings

ROUTES = (
    "/init_weight_transfer_engine",
    "/start_weight_update",
    "/update_weights",
    "/finish_weight_update",
    "/collective_rpc",
    "/pause",
)


class Trained(WeightTransferMethods, FakeEngine):
    """Keeps the calls."""

    receives_weights = True
    weights_version = 0

    def get_world_size(self) -> int:
        return 2

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


async def test_trainers_may_call_worker_methods_by_name():
    engine = Trained()
    async with client(engine) as http:

        async def call(method, **fields):
            r = await http.post("/collective_rpc", json={"method": method, **fields})
            return r.status_code, r.json()

        assert await call("init_weight_transfer_engine", args=[{"master_port": 1}]) == (200, {"results": [None, None]})
        assert (await call("start_weight_update", kwargs={"is_checkpoint_format": True}))[0] == 200
        assert (await call("update_weights", args=[{"names": ["a"]}]))[0] == 200
        assert (await call("finish_weight_update"))[0] == 200
        assert engine.calls == [{"master_port": 1}, True, {"names": ["a"]}]
        assert engine.weights_version == 1
        status, answer = await call("update_weights", args=[{}, 2])
        assert status == 400
        assert "update_weights: too many positional arguments" in answer["error"]["message"]
        status, answer = await call("save_sharded_state")
        assert status == 400
        assert "'save_sharded_state' is not one of init_weight_transfer_engine, start_weight_update" in str(answer)
        engine.finish_weight_update = lambda: asyncio.sleep(60)
        status, answer = await call("finish_weight_update", timeout=0.01)
        assert status == 503
        assert "no result within 0.01 s" in answer["error"]["message"]
