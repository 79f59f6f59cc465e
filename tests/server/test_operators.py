"""Routes for operators: there on demand, strict about what they are told, closed to other pages."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from fake_engine import FakeEngine

PATHS = ("/sleep", "/wake_up", "/pause", "/resume", "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache")


class Resting(FakeEngine):
    """Keeps what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[object] = []

    async def sleep(self, level: int, mode: str) -> None:
        self.told.append(("sleep", level, mode))

    async def wake_up(self) -> None:
        self.told.append("wake_up")

    async def is_sleeping(self) -> bool:
        return self.told[-1][0] == "sleep"

    async def pause_generation(self, mode: str, *, clear_cache: bool) -> None:
        self.told.append(("pause", mode, clear_cache))

    async def resume_generation(self) -> None:
        self.told.append("resume")

    async def is_paused(self) -> bool:
        return self.told[-1] != "resume"

    async def reset_prefix_cache(self) -> bool:
        self.told.append("reset")
        return True

    def get_world_size(self, include_dp: bool) -> int:
        return 3 if include_dp else 2

    def on_resized(self, call: Callable[[], None]) -> None:
        self.resized = call

    async def scale_elastic_ep(self, size: int, drain_timeout: float) -> None:
        self.told.append(("scale", size, drain_timeout))

    async def reset_mm_cache(self) -> None:
        self.told.append("reset media")

    async def reset_encoder_cache(self) -> None:
        self.told.append("reset encoders")


@pytest.mark.slow
def test_without_dev_mode_there_are_none(server) -> None:
    assert [server.post(p).status_code for p in PATHS] == [404] * len(PATHS)
    assert "/sleep" not in server.get("/openapi.json").json()["paths"]


def test_what_they_say_reaches_the_engine(start) -> None:
    running = start(Resting(), server_dev_mode=True)
    told = running.engine.told
    assert running.post("/sleep?level=2&mode=keep").json() == {"status": "sleeping"}
    assert running.get("/is_sleeping").json() == {"is_sleeping": True}
    for query in ("", "?tags=weights&tags=kv_cache"):
        assert running.post(f"/wake_up{query}").json() == {"status": "awake"}
    assert running.post("/pause?mode=keep&clear_cache=false").json() == {"status": "paused"}
    assert running.get("/is_paused").json() == {"is_paused": True}
    running.post("/pause?wait_for_inflight_requests=true")
    assert running.post("/resume").json() == {"status": "resumed"}
    assert running.post("/reset_prefix_cache").json() == {"success": True}
    assert running.post("/reset_mm_cache").json() == running.post("/reset_encoder_cache").json() == {"success": True}
    sizes = [running.get(f"/get_world_size{q}").json()["world_size"] for q in ("", "?include_dp=false")]
    assert sizes == [3, 2]
    running.post("/sleep")
    expected = [
        "wake_up",
        "wake_up",
        ("pause", "keep", False),
        ("pause", "wait", True),
        "resume",
        "reset",
        "reset media",
        "reset encoders",
        ("sleep", 1, "abort"),
    ]
    assert told == [("sleep", 2, "keep"), *expected]


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/sleep?level=deep", "level"),
        ("/sleep?depth=1", "depth"),
        ("/wake_up?tags=weights", "tags"),
        ("/wake_up?tags=soul", "tags"),
        ("/pause?clear_cache=maybe", "clear_cache"),
        ("/pause?mode=keep&wait_for_inflight_requests=1", "wait_for_inflight_requests"),
        ("/reset_prefix_cache?reset_external=true", "reset_external"),
        ("/reset_prefix_cache?reset_running_requests=1", "reset_running_requests"),
        ("/resume?now=1", "now"),
        ("/reset_mm_cache?now=1", "now"),
        ("/reset_encoder_cache?now=1", "now"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(operators, path: str, param: str) -> None:
    answer = operators.post(path)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_the_number_of_engines_changes_when_asked(start) -> None:
    engine = Resting()
    running = start(engine, server_dev_mode=True)
    assert running.post("/is_scaling_elastic_ep").json() == {"is_scaling_elastic_ep": False}
    answer = running.post("/scale_elastic_ep", json={"new_data_parallel_size": 3, "drain_timeout": 9})
    assert answer.json() == {"message": "Scaled to 3 data parallel engines"}
    assert engine.told == [("scale", 3, 9)]
    before = running.app.serving.admission.slots
    engine.config = msgspec.structs.replace(engine.config, engines=3)
    engine.resized()
    assert running.app.serving.admission.slots == 3 * before
    for body in ({}, {"new_data_parallel_size": 0}, {"new_data_parallel_size": 2, "drain_timeout": 0}):
        assert running.post("/scale_elastic_ep", json=body).status_code == 400


def test_pages_of_other_origins_operate_nothing(operators) -> None:
    assert operators.post("/sleep", headers={"origin": "https://evil.example"}).status_code == 403
    assert operators.post("/resume", headers={"origin": operators.url}).status_code == 200
    assert ("sleep", 1, "abort") not in operators.engine.told


@pytest.fixture(scope="module")
def operators():
    from conftest import Running

    from thalweg.server.settings import ServerSettings

    running = Running(Resting(), ServerSettings(server_dev_mode=True))
    yield running
    running.stop()


def test_addresses_of_kv_events_are_those_that_the_router_can_reach(start) -> None:
    source = {"data_parallel_rank": 0, "endpoint": "tcp://*:5557", "replay_endpoint": None, "topic": "t"}

    class Publishing(FakeEngine):
        async def get_kv_event_sources(self) -> list[dict]:
            return [dict(source)]

    assert start(Publishing()).get("/kv_event_sources").json() == [{**source, "endpoint": "tcp://127.0.0.1:5557"}]
