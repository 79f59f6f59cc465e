"""Adapters that operators load and unload while the server runs, over the real bookkeeping of a client's adapters."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from fake_engine import FakeEngine
from safetensors.numpy import save_file

from thalweg.checkpoint.adapters import read_adapter
from thalweg.config import EngineArgs
from thalweg.engine.client.adapters import ClientAdapters
from thalweg.engine.messages import Outputs, SequenceStarted
from thalweg.errors import RequestError
from thalweg.server.resolvers import RESOLVERS

LOAD, UNLOAD, TEXT = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/completions"


def write(folder: Path, value: float) -> Path:
    """An adapter of one matrix whose content is this number."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {
        f"{name}.lora_A.weight": np.full((1, 4), value, np.float32),
        f"{name}.lora_B.weight": np.ones((4, 1), np.float32),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 1, "lora_alpha": 1}))
    return folder


class Adapted(FakeEngine):
    """Keeps the content that each request was served with. An adapter whose folder is named "wide" does not fit it."""

    def __init__(self, delay: float = 0.0) -> None:
        super().__init__(delay=delay)
        scheduler = msgspec.structs.replace(self.config.scheduler, adapter_slots=2)
        self.config = msgspec.structs.replace(self.config, scheduler=scheduler)
        self.loaded: set[bytes] = set()
        supervisor: Any = SimpleNamespace(load_adapter=self._load, unload_adapter=self.loaded.remove)
        self.adapters = ClientAdapters(supervisor, EngineArgs(enable_lora=True, max_loras=2))
        self.served: list[bytes | None] = []
        self.handles = 0

    async def _load(self, digest: bytes, path: str) -> None:
        if path.endswith("wide"):
            raise RequestError(f"{path}: the adapter has rank 17, but slots have room for 16 (--max-lora-rank)")
        self.loaded.add(digest)

    async def add_lora(self, request: Any) -> None:
        await self.adapters.add(request)

    def retire_lora(self, number: int) -> bool:
        return self.adapters.retire(number)

    def adapters_in_use(self) -> tuple[list[str], list[str]]:
        return self.adapters.traffic.names()

    why_not_ready = ""

    async def generate(self, *args: Any, lora_request: Any = None, **kwargs: Any) -> AsyncGenerator[Any, None]:
        if lora_request is None:
            self.served.append(None)
            async for output in super().generate(*args, **kwargs):
                yield output
            return
        digest = await self.adapters.add(lora_request)
        self.handles += 1
        handle = self.handles
        use = self.adapters.hold(lora_request, digest, [handle])
        self.served.append(digest)
        assert digest in self.loaded
        try:
            await asyncio.sleep(self.delay)
            self.adapters.traffic.record(_started(handle))
            async for output in super().generate(*args, **kwargs):
                yield output
            assert digest in self.loaded, "unloaded while a request ran with it"
        finally:
            self.adapters.release(use)


def _started(handle: int) -> Outputs:
    none = np.zeros(0, np.int64)
    return Outputs(none, none.astype(np.int32), 1.0, started=[SequenceStarted(handle, 0, 1.0, 1.0)])


def ask(running: Any, model: str, **more: Any) -> int:
    status: int = running.post(TEXT, {"model": model, "prompt": "a", "max_tokens": 4, **more}).status_code
    return status


def names(running: Any) -> list[str]:
    return [card["id"] for card in running.get("/v1/models").json()["data"]]


def wait_until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


@pytest.fixture
def running(start, tmp_path):
    return start(Adapted(delay=0.02), enable_lora_routes=True, lora_root=[str(tmp_path)])


@pytest.mark.slow
def test_without_the_flag_there_are_no_routes(server) -> None:
    assert [server.post(p, {}).status_code for p in (LOAD, UNLOAD)] == [404, 404]


def test_without_a_root_nothing_is_loaded(start, tmp_path) -> None:
    refused = start(Adapted(), enable_lora_routes=True).post(
        LOAD, {"lora_name": "a", "lora_path": str(write(tmp_path / "a", 1))}
    )
    assert refused.status_code == 400
    assert "--lora-root" in refused.json()["error"]["message"]


def test_an_adapter_is_served_from_its_loading_to_its_unloading(running, tmp_path) -> None:
    path = write(tmp_path / "sql", 1)
    assert ask(running, "team/sql") == 404
    answer = running.post(LOAD, {"lora_name": "team/sql", "lora_path": "sql"})
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'team/sql' added successfully.")
    card = running.get("/v1/models/team/sql").json()
    assert (card["id"], card["root"], card["parent"]) == ("team/sql", "sql", "fake")
    assert ask(running, "team/sql") == ask(running, "fake") == 200
    assert running.engine.served == [read_adapter(path).digest, None]
    again = running.post(LOAD, {"lora_name": "team/sql", "lora_path": str(path)})
    assert again.status_code == 400
    assert "'team/sql' has already been loaded" in again.json()["error"]["message"]
    assert running.post(UNLOAD, {"lora_name": "team/sql", "lora_int_id": 7}).status_code == 404
    answer = running.post(UNLOAD, {"lora_name": "team/sql", "lora_int_id": 1})
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'team/sql' removed successfully.")
    assert ask(running, "team/sql") == running.post(UNLOAD, {"lora_name": "team/sql"}).status_code == 404
    assert (names(running), running.engine.loaded) == (["fake", "alias"], set())


@pytest.mark.slow
def test_a_request_ends_with_the_content_it_began_with(running, tmp_path) -> None:
    """In place: others get the new one at once, and the old one goes with its last request. The same of an unloaded name, for
    every part of a request that runs in parts."""
    engine = running.engine
    old = read_adapter(write(tmp_path / "a", 1)).digest
    assert running.post(LOAD, {"lora_name": "a", "lora_path": "a"}).status_code == 200
    long = threading.Thread(target=ask, args=(running, "a"), kwargs={"max_tokens": 25})
    long.start()
    wait_until(lambda: engine.served)
    new = read_adapter(write(tmp_path / "a", 2)).digest
    assert running.post(LOAD, {"lora_name": "a", "lora_path": "a", "load_inplace": True}).status_code == 200
    assert engine.loaded == {old, new}
    assert ask(running, "a", max_tokens=1) == 200
    assert engine.served == [old, new]
    long.join()
    wait_until(lambda: engine.loaded == {new})
    many = threading.Thread(target=ask, args=(running, "a"), kwargs={"n": 24, "max_tokens": 8})
    many.start()
    wait_until(lambda: len(engine.served) > 2)
    assert running.post(UNLOAD, {"lora_name": "a"}).status_code == 200
    assert ask(running, "a") == 404
    many.join()
    assert len(engine.served) > 3, "the request ran in parts"
    assert set(engine.served[2:]) == {new}
    wait_until(lambda: not engine.loaded)


@pytest.mark.slow
def test_metrics_name_the_adapters_that_run_and_those_that_wait(running, tmp_path) -> None:
    def labels() -> dict[str, str]:
        text = running.get("/metrics").text
        (line,) = re.findall(r"^vllm:lora_requests_info\{(.*)\} (\S+)$", text, re.M)
        assert float(line[1]) > 1e9
        return dict(re.findall(r'(\w+)="([^"]*)"', line[0]))

    for name in ("a", "b"):
        write(tmp_path / name, ord(name))
        running.post(LOAD, {"lora_name": name, "lora_path": name})
    base = {"model_name": "fake", "engine": "0", "max_lora": "2"}
    assert labels() == {**base, "running_lora_adapters": "", "waiting_lora_adapters": ""}
    asking = [threading.Thread(target=ask, args=(running, n), kwargs={"max_tokens": 15, "n": 10}) for n in ("a", "b")]
    asking[0].start()
    wait_until(lambda: len(running.engine.served) == 5)  # the window is full
    asking[1].start()
    wait_until(lambda: labels() == {**base, "running_lora_adapters": "a", "waiting_lora_adapters": "b"})
    for thread in asking:
        thread.join()
    wait_until(lambda: labels() == {**base, "running_lora_adapters": "", "waiting_lora_adapters": ""})


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"lora_path": "good"}, 400, "lora_name"),
        ({"lora_name": "a"}, 400, "lora_path"),
        ({"lora_name": "a b", "lora_path": "good"}, 400, "lora_name: 'a b' must be"),
        ({"lora_name": "../a", "lora_path": "good"}, 400, "lora_name: '../a' must be"),
        ({"lora_name": "alias", "lora_path": "good"}, 400, "a name of the model itself"),
        ({"lora_name": "a", "lora_path": "../outside"}, 400, "is in no folder of --lora-root"),
        ({"lora_name": "a", "lora_path": "/nowhere/at/all"}, 400, "is in no folder of --lora-root"),
        ({"lora_name": "a", "lora_path": "way_out"}, 400, "is in no folder of --lora-root"),
        ({"lora_name": "a", "lora_path": "linked"}, 400, "is a link out of the folders"),
        ({"lora_name": "a", "lora_path": "missing"}, 404, "'missing' does not exist"),
        ({"lora_name": "a", "lora_path": "empty"}, 404, "holds no adapter"),
        ({"lora_name": "a", "lora_path": "a\0b"}, 400, "lora_path"),
        ({"lora_name": "a", "lora_path": "cut"}, 400, "cut/adapter_model.safetensors"),
        ({"lora_name": "a", "lora_path": "nan"}, 400, "NaN"),
        ({"lora_name": "a", "lora_path": "wide"}, 400, "lora_path: wide: the adapter has rank 17"),
    ],
)
@pytest.mark.sampled(3)
def test_what_cannot_be_served_is_refused_and_changes_nothing(start, tmp_path, body, status, said) -> None:
    root = tmp_path / "root"
    for name, value in (("good", 1.0), ("nan", np.nan), ("wide", 2.0), ("cut", 3.0)):
        write(root / name, value)
    (root / "empty").mkdir()
    weights = root / "cut" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    outside = write(tmp_path / "outside", 4)
    (root / "way_out").symlink_to(outside)
    write(root / "linked", 5)
    (root / "linked" / "adapter_model.safetensors").unlink()
    (root / "linked" / "adapter_model.safetensors").symlink_to(outside / "adapter_model.safetensors")
    running = start(Adapted(), enable_lora_routes=True, lora_root=[str(root)])
    answer = running.post(LOAD, body)
    assert (answer.status_code, said in answer.json()["error"]["message"]) == (status, True), answer.text
    assert str(root) not in answer.text
    assert (names(running), running.engine.loaded) == (["fake", "alias"], set())


def test_one_of_two_that_load_a_name_at_once_is_told_that_it_is_taken(running, tmp_path) -> None:
    write(tmp_path / "a", 1)

    async def both() -> list[int]:
        body = {"lora_name": "a", "lora_path": "a"}
        adapters = [asyncio.to_thread(running.post, LOAD, body) for _ in range(2)]
        return sorted(r.status_code for r in await asyncio.gather(*adapters))

    assert asyncio.run(both()) == [200, 400]


def find_in_vault(base: str, name: str, roots: Any) -> str | None:
    """A resolver: names of one team, for one base model."""
    return f"{roots[0]}/vault/{name}" if (base, name[:4]) == ("fake", "team") else None


def test_an_unknown_name_is_served_if_a_resolver_finds_its_adapter(start, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(RESOLVERS._local, "vault", f"{__name__}:find_in_vault")
    root = tmp_path / "root"
    sql, team = write(root / "sql", 1), write(root / "vault" / "team-1", 2)
    write(root / "wide", 3)
    write(tmp_path / "outside", 4)
    (root / "way_out").symlink_to(tmp_path / "outside")
    running = start(Adapted(), lora_resolver=["vault", "folder"], lora_root=[str(root)])
    want = {
        "sql": 200, "team-1": 200, "fake": 200, "none": 404, "../outside": 404, "way_out": 400, "wide": 400, "alias": 200,
        "./sql": 404, "sql/": 404, "/sql": 404, "vault": 404,
    }  # fmt: skip
    assert {name: ask(running, name) for name in want} == want
    refused = running.post(TEXT, {"model": "wide", "prompt": "a"}).json()["error"]
    assert (refused["message"][:18], refused["param"]) == ("model: wide: the a", "model")
    assert running.engine.served == [read_adapter(sql).digest, read_adapter(team).digest, None, None]
    assert names(running) == ["fake", "alias", "sql", "team-1"]
    assert running.post(LOAD, {"lora_name": "a", "lora_path": "sql"}).status_code == 404, "the routes are off"


def find_nothing_but_faults(base: str, name: str, roots: Any) -> Any:
    """A resolver that breaks its contract."""
    if name == "number":
        return 5
    raise KeyError(name)


def test_a_faulty_resolver_has_found_nothing_and_the_next_is_asked(start, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(RESOLVERS._local, "faulty", f"{__name__}:find_nothing_but_faults")
    write(tmp_path / "sql", 1)
    running = start(Adapted(), lora_resolver=["faulty", "folder"], lora_root=[str(tmp_path)])
    want = {"none": 404, "number": 404, "sql": 200}
    assert {name: ask(running, name) for name in want} == want
