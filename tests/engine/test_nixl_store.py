"""The store in the memory of peers: with NIXL where it is installed, and with agents that copy within this process."""

from __future__ import annotations

import ctypes
import random
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from loopback import free_port
from store_faults import BLOCKS, KEYS, answers, check_contract, damage, run_faults, settle, start

from thalweg.engine.control.store import nixl
from thalweg.engine.control.store.arena import PAGE, BlockArena
from thalweg.engine.control.store.nixl import NixlStore
from thalweg.engine.control.store.sockets import connect
from thalweg.errors import ConfigError

try:
    import nixl._api as real
except ImportError:
    real = None
Open = Callable[..., NixlStore]


class FakeAgent:
    """The calls of `nixl_agent` that the store makes. Addresses are those of this process."""

    broken = False

    def __init__(self, name: str, config: Any) -> None:
        self.name = name

    def register_memory(self, regions: list[Any], kind: str) -> Any:
        return regions

    def deregister_memory(self, regions: Any) -> None:
        pass

    def get_agent_metadata(self) -> bytes:
        return self.name.encode()

    def add_remote_agent(self, metadata: bytes) -> bytes:
        return metadata

    def remove_remote_agent(self, name: str) -> None:
        pass

    def get_xfer_descs(self, pieces: list[tuple[int, int, int]], kind: str) -> Any:
        return pieces

    def initialize_xfer(self, how: str, ours: Any, theirs: Any, name: str) -> Any:
        assert [size for _, size, _ in ours] == [size for _, size, _ in theirs]
        return list(zip(ours, theirs, strict=True))

    def transfer(self, handle: Any) -> str:
        if FakeAgent.broken:
            return "ERR"
        for (target, size, _), (source, _, _) in handle:
            ctypes.memmove(target, source, size)
        return "PROC"

    def check_xfer_state(self, handle: Any) -> str:
        return "DONE"

    def release_xfer_handle(self, handle: Any) -> None:
        pass


REAL = pytest.param(True, marks=pytest.mark.skipif(real is None, reason="NIXL is not installed"), id="real")


@pytest.fixture(params=[pytest.param(False, id="fake"), REAL])
def open_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Open]:
    if not request.param:
        fake = types.ModuleType("nixl._api")
        fake.nixl_agent, fake.nixl_agent_config = FakeAgent, dict  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "nixl", types.ModuleType("nixl"))
        monkeypatch.setitem(sys.modules, "nixl._api", fake)
        monkeypatch.setattr(FakeAgent, "broken", False)
    monkeypatch.setattr(nixl, "AGAIN_SECONDS", 0.0)
    (tmp_path / "peers").write_text("a secret of sixteen bytes or more")
    made = []

    def open_(**options: Any) -> NixlStore:
        made.append(NixlStore.open({"secret_file": str(tmp_path / "peers"), "max_bytes": 16 << 20, **options}))
        return made[-1]

    yield open_
    for store in made:
        store.close()


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


def test_an_engine_reads_the_blocks_of_its_peers(open_store: Open) -> None:
    address, gone = free_address(), free_address()
    owner = open_store(listen=address)
    check_contract(owner)
    reader = open_store(peers=[gone, address])
    large = [random.Random(i).randbytes((3 << 20) + i) for i in range(3)]
    names = [b"large" + key[:11] for key in KEYS[:3]]
    owner.save(names, large)
    assert reader.lookup([*names, KEYS[7]]) == [True, True, True, False]
    reader.save(names[2:], large[2:])  # its own goes first
    assert reader.load([*names, KEYS[7]]) == [*large, None]
    reader.discard(names[:1])
    assert owner.lookup(names) == [False, True, True], "the owner has dropped the damaged block"
    owner.close()
    assert reader.lookup(names) == [False, False, True]
    assert reader.load(names) == [None, None, large[2]]
    again = open_store(listen=address)
    again.save(names[:1], large[:1])
    assert reader.lookup(names[:1]) == [True]
    assert reader.load(names[:1]) == large[:1]


def test_a_process_without_the_secret_learns_nothing(open_store: Open) -> None:
    address = free_address()
    open_store(listen=address).save(KEYS, BLOCKS)
    host, _, port = address.partition(":")
    with pytest.raises(OSError, match=r"ended|another secret|reset"):
        connect((host, int(port)), b"another secret of some bytes", 2.0).receive()


def test_leased_blocks_stay_until_the_lease_ends() -> None:
    now = 0.0
    arena = BlockArena(4 * PAGE, 10.0, lambda: now)
    blocks = [bytes([i]) * (PAGE + 1 if i == 1 else PAGE) for i in range(6)]
    for i in (0, 2, 3):
        arena.save(KEYS[i], blocks[i])
    number, places = arena.lease([KEYS[0], KEYS[5]])
    assert places[1] is None
    arena.save(KEYS[1], blocks[1])  # two pages: the free one, and that of the oldest without a lease
    assert [key in arena for key in KEYS[:4]] == [True, True, False, True]
    assert arena.load(KEYS[1]) == blocks[1]
    both, _ = arena.lease([KEYS[1], KEYS[3]])
    arena.save(KEYS[4], blocks[4])
    assert KEYS[4] not in arena, "all are under a lease"
    leased = places[0]
    arena.discard(KEYS[:1])
    assert KEYS[0] not in arena, "a damaged block is not found again, though its reader is not done"
    assert arena.lease(KEYS[:1])[1] == [None]
    for i in (0, 4):
        arena.save(KEYS[i], blocks[i])
        assert KEYS[i] not in arena, "its page is not free"
    at = leased[0][0] - arena.memory.ctypes.data  # type: ignore[index]
    assert arena.memory[at : at + PAGE].tobytes() == blocks[0]
    arena.release(number)
    arena.save(KEYS[4], blocks[4])
    assert [key in arena for key in KEYS[:5]] == [False, True, False, True, True]
    now = 11.0
    arena.save(KEYS[5], bytes(4 * PAGE))
    assert [key in arena for key in KEYS[:6]] == [False] * 5 + [True], "the reader has not ended its lease in time"
    arena.release(both)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "listen: is missing, and so is peers"),
        ({"listen": "5600"}, "listen: must be such as 10.0.0.5:5600"),
        ({"peers": "h:1"}, "peers: must be a list"),
        ({"listen": "h:1", "max_bytes": 0}, "max_bytes: must be a number of bytes"),
        ({"listen": "h:1", "secret_file": None}, "secret_file: must be a file"),
        ({"listen": "h:1", "secret_file": "/nowhere"}, "secret_file: /nowhere: cannot be read"),
        ({"listen": "h:1", "backends": "UCX"}, "backends: must be a list"),
        ({"listen": "h:1", "port": 1}, "'port' is not supported; this store has listen, peers"),
    ],
)
def test_options_of_nixl_are_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        NixlStore.open({"secret_file": "/nowhere", "max_bytes": 1, **options})


@pytest.mark.slow
def test_a_damaged_or_dead_peer_costs_time_and_no_token(open_store: Open, tmp_path: Path) -> None:
    """Two engines, of which one only reads: every block that it has comes from the other's memory, damaged or not."""
    want, address = answers(start(tmp_path)), free_address()
    options = {"secret_file": str(tmp_path / "peers"), "max_bytes": 16 << 20}
    owner = start(tmp_path, "NixlConnector", listen=address, **options)
    reader = start(tmp_path, "nixl", peers=[address], load_timeout=2, **options)
    arena = owner.llm_engine.core._transfers._store._arena  # type: ignore[union-attr]
    mine = reader.llm_engine.core._transfers._store._arena  # type: ignore[union-attr]

    def refill() -> None:
        mine.discard(list(mine._blocks))
        owner.reset_prefix_cache()
        assert answers(owner) == want
        settle(owner)

    def spoil(rng: random.Random) -> int:
        refill()
        some = rng.sample(list(arena._blocks), 40)
        for key in some:
            block = damage(rng, arena.load(key), arena.load(rng.choice(list(arena._blocks))))
            arena.discard([key])
            arena.save(key, block or b"-")
        return len(some)

    refill()
    assert run_faults(reader, want, spoil, 4) == 160
    refill()
    owner.llm_engine.core._transfers._store.close()  # type: ignore[union-attr]
    reader.reset_prefix_cache()
    assert answers(reader) == want  # nobody answers
    for llm in (owner, reader):
        llm.llm_engine.core.check()
        llm.shutdown()
