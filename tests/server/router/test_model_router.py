"""A server with several models: every request goes to the model that it names, whether that is loaded or not."""

from __future__ import annotations

import asyncio
import json
import random

import httpx
import pytest
from fake_engine import FakeEngine

from thalweg.config import EngineArgs
from thalweg.errors import DeviceError
from thalweg.server.app import Application
from thalweg.server.errors import ApiError
from thalweg.server.router.dispatch import ModelRouter
from thalweg.server.router.models import ModelEntry, ModelList
from thalweg.server.router.standby import StandbyReserve
from thalweg.server.settings import ServerSettings

TEXT = "/v1/completions"


class Sleeper(FakeEngine):
    """Counts starts. Its text begins with its name."""

    errored = False

    def __init__(self, name: str, delay: float = 0.0) -> None:
        super().__init__(names=(name, f"{name}-alias"), delay=delay)
        self.awake, self.starts, self.was_asleep = True, 1, asyncio.Event()

    async def sleep(self, level: int, mode: str) -> None:
        assert self.awake
        assert mode != "wait" or not self.running, "an engine with requests was ended"
        self.awake = False

    async def wake_up(self) -> None:
        await asyncio.sleep(0)
        self.awake, self.starts = True, self.starts + 1

    async def generate(self, *args, **kwargs):
        assert self.awake, "a request reached an engine without a process"
        async for output in super().generate(*args, **kwargs):
            yield output

    async def add_default_loras(self):
        """None."""

    def adopt_standby(self, standby):
        raise AssertionError("this test keeps none")

    async def get_kv_event_sources(self):
        return []


class World:
    """A server of fake engines. faults: name -> the error of its next start."""

    def __init__(self, count=3, max_loaded=2, delay=0.0, settings=None, **options):
        self.engines: dict[str, Sleeper] = {}
        self.faults: dict[str, Exception] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        settings = settings or ServerSettings(server_dev_mode=True, sse_keep_alive_interval=0.01, max_queued_requests=1000)
        self.app = Application(settings)
        entries = tuple(
            ModelEntry(
                args=EngineArgs(served_model_name=[f"m{i}", f"m{i}-alias"]), settings=settings, names=(f"m{i}", f"m{i}-alias"),
                cost={"cpu": 10}, max_model_len=256, max_num_seqs=64, **options,
            )
            for i in range(count)
        )  # fmt: skip
        listed = ModelList(entries=entries, budgets={"cpu": 100}, max_loaded=max_loaded)

        async def start(args, loggers, standby):
            name = args.served_model_name[0]
            await self.gate.wait()
            if name in self.faults:
                raise self.faults.pop(name)
            self.engines[name] = Sleeper(name, delay)
            return self.engines[name]

        self.router = ModelRouter(listed, settings, self.app.lifecycle, self.app.traffic, StandbyReserve(None), start=start)
        self.app.open_models(self.router)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://localhost", timeout=60)

    async def ask(self, model, prompt="ab", **fields):
        return await self.http.post(TEXT, json={"model": model, "prompt": prompt, "max_tokens": 4, **fields})

    async def states(self):
        cards = (await self.http.get("/v1/models")).json()["data"]
        return {c["id"]: c["status"]["value"] for c in cards if "alias" not in c["id"]}


async def test_200_random_requests_to_5_models_with_room_for_2_all_succeed():
    world, dice = World(5), random.Random(7)

    async def one():
        await asyncio.sleep(dice.random() / 10)
        name = f"m{dice.randrange(5)}"
        answer = await world.ask(name)
        return answer.status_code, answer.json()["model"] == name

    assert set(await asyncio.gather(*(one() for _ in range(200)))) == {(200, True)}
    assert sum(e.awake for e in world.engines.values()) <= 2


async def test_an_adapter_cannot_have_the_name_of_another_model():
    """Requests for that name would never reach it."""
    world = World()
    await world.ask("m0")
    for name in ("m1", "m2-alias"):
        with pytest.raises(ApiError, match="belongs to another model"):
            await world.router.models[0].serving.adapters.load(name, "folder", False, False)


async def test_the_listing_tells_states_and_loads_nothing():
    world = World()
    assert await world.states() == {"m0": "unloaded", "m1": "unloaded", "m2": "unloaded"}
    world.gate.clear()
    waits = asyncio.create_task(world.ask("m1-alias"))
    while (await world.states())["m1"] != "loading":
        await asyncio.sleep(0.001)
    world.gate.set()
    assert (await waits).json()["model"] == "m1-alias"
    assert (await world.states())["m1"] == "loaded"
    card = (await world.http.get("/v1/models/m1-alias")).json()
    assert card["status"] == {"value": "loaded", "pinned": False}
    unknown = await world.ask("none")
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "model")
    assert (await world.http.post(TEXT, json={"prompt": "a", "max_tokens": 1})).json()["model"] == "m0"


async def test_a_stream_of_a_cold_model_has_comments_until_it_begins():
    world = World()
    world.gate.clear()
    asyncio.get_running_loop().call_later(0.1, world.gate.set)
    answer = await world.ask("m2", stream=True)
    assert answer.text.startswith(": keep-alive\n\n")
    assert answer.text.endswith("data: [DONE]\n\n")
    assert '"model":"m2"' in answer.text


async def test_a_model_that_cannot_be_loaded_answers_503_and_is_tried_again():
    world = World()
    world.faults["m1"] = DeviceError("the device of /secret is gone")
    answer = await world.ask("m1")
    assert answer.status_code == 503
    assert "secret" not in answer.text
    assert (await world.ask("m1")).status_code == 200
    world.faults["m2"] = DeviceError("again")
    world.gate.clear()
    asyncio.get_running_loop().call_later(0.05, world.gate.set)
    assert '"code":503' in (await world.ask("m2", stream=True)).text


async def test_a_model_sleeps_and_wakes_by_name():
    world = World()
    assert (await world.ask("m0")).status_code == 200
    assert (await world.http.post("/sleep")).status_code == 400
    assert (await world.http.post("/sleep?model=m0&mode=keep")).json() == {"status": "sleeping"}
    assert (await world.http.get("/is_sleeping?model=m0")).json() == {"is_sleeping": True}
    assert (await world.http.get("/is_sleeping")).json() == {"is_sleeping": False}
    waits = asyncio.create_task(world.ask("m0"))
    assert (await world.ask("m1")).status_code == 200
    assert not waits.done()
    assert (await world.states())["m0"] == "sleeping"
    assert (await world.http.post("/wake_up?model=m0")).json() == {"status": "awake"}
    assert (await waits).status_code == 200


async def test_state_between_requests_belongs_to_the_server():
    """Stored responses are found, and batches reach every model, whichever models are loaded."""
    world = World()
    made = (await world.http.post("/v1/responses", json={"model": "m1", "input": "hi", "max_output_tokens": 4})).json()
    again = await world.http.post(
        "/v1/responses", json={"model": "m2", "input": "so", "max_output_tokens": 4, "previous_response_id": made["id"]}
    )
    assert again.status_code == 200
    assert (await world.http.get(f"/v1/responses/{made['id']}")).json()["model"] == "m1"
    lines = [
        json.dumps({"custom_id": f"c{i}", "url": TEXT, "body": {"model": f"m{i}", "prompt": "a", "max_tokens": 2}})
        for i in range(3)
    ]
    sent = await world.http.post("/v1/files", files={"file": ("a.jsonl", "\n".join(lines))}, data={"purpose": "batch"})
    body = {"input_file_id": sent.json()["id"], "endpoint": TEXT, "completion_window": "24h"}
    batch = (await world.http.post("/v1/batches", json=body)).json()
    async with asyncio.timeout(60):
        while batch["status"] != "completed":
            await asyncio.sleep(0.01)
            batch = (await world.http.get(f"/v1/batches/{batch['id']}")).json()
    assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}


async def test_metrics_are_labelled_by_model():
    world = World()
    for name in ("m0", "m1", "m1"):
        await world.ask(name)
    text = (await world.http.get("/metrics")).text
    assert text.count("# TYPE vllm:request_success_total counter") == 1
    assert all(f'vllm:num_requests_running{{engine="0",model_name="{n}"}} 0.0' in text for n in ("m0", "m1"))


@pytest.mark.parametrize("drain", [False, True])
async def test_an_engine_lost_for_good_starts_anew_with_the_next_request(drain):
    world = World()
    await world.ask("m0")
    first = world.engines["m0"]
    first.errored = first.dead = True
    if drain:
        await world.ask("m1")
    assert (await world.ask("m0")).status_code == 200
    assert world.engines["m0"] is not first
