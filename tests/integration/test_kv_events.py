"""KV events as a router reads them: vLLM's published schema, replay after a gap, and an engine that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
from loopback import free_port

from thalweg import AsyncLLM, EngineArgs, SamplingParams
from thalweg.engine.client.kv_events import KvEvents, to_wire
from thalweg.engine.control.request import Request, prefix_salt, read_salt
from thalweg.engine.messages import BlocksCleared, BlocksStored, EngineRequest, Input, Outputs, TokenSampling
from thalweg.errors import ConfigError
from thalweg.options.flag import check
from thalweg.options.kv_events import KvEventsConfig, read_kv_events
from thalweg.prompts import TokensPrompt

END = (-1).to_bytes(8, "big", signed=True)


class BlockStored(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """vllm.distributed.kv_events, 0.33."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    pass


class KVEventBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class Router:
    """A subscriber: (number, batch) of all it heard."""

    def __init__(self, config: KvEventsConfig, subscribes: bool = True) -> None:
        self.context = zmq.Context()
        self.sub, self.asks = self.context.socket(zmq.SUB), self.context.socket(zmq.DEALER)
        if subscribes:
            self.sub.subscribe(config.topic)
            self.sub.connect(config.endpoint)
        self.asks.connect(config.replay_endpoint)
        self.topic = config.topic.encode()
        self.heard: list[tuple[int, KVEventBatch]] = []

    def read(self, frames: list[bytes]) -> tuple[int, KVEventBatch]:
        topic, number, payload = frames
        assert topic == self.topic
        return int.from_bytes(number, "big"), msgspec.msgpack.decode(payload, type=KVEventBatch)

    async def hear(self, seconds: float = 60.0) -> tuple[int, KVEventBatch]:
        for _ in range(int(seconds / 0.01)):
            if self.sub.poll(0):
                self.heard.append(self.read(self.sub.recv_multipart()))
                return self.heard[-1]
            await asyncio.sleep(0.01)
        raise AssertionError("no batch came")

    def replay(self, first: int) -> list[tuple[int, KVEventBatch]]:
        self.asks.send_multipart([b"", first.to_bytes(8, "big")])
        found = []
        while True:
            assert self.asks.poll(60_000), "the replay has no end"
            frames = self.asks.recv_multipart()[1:]
            if frames[1] == END:
                return found
            found.append(self.read(frames))

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def config() -> KvEventsConfig:
    live, again = free_port(), free_port()
    return KvEventsConfig(
        enable_kv_cache_events=True, endpoint=f"tcp://127.0.0.1:{live}", replay_endpoint=f"tcp://127.0.0.1:{again}",
        topic="kv@here@nano",
    )  # fmt: skip


@pytest.fixture
async def engine(config: KvEventsConfig) -> AsyncIterator[AsyncLLM]:
    args = EngineArgs(
        device="null", max_model_len=256, max_num_seqs=4, block_size=16, num_gpu_blocks_override=24, max_restarts=9,
        standby_engine=False, kv_events_config=msgspec.to_builtins(config),
    )  # fmt: skip
    made = await AsyncLLM.start(args)
    yield made
    await made.shutdown()


async def run(engine: AsyncLLM, tokens: list[int], name: str, salt: str = "") -> int:
    """Tokens of the prompt that were cached."""
    prompt = TokensPrompt(prompt_token_ids=tokens) | ({"cache_salt": salt} if salt else {})
    async for out in engine.generate(prompt, SamplingParams(max_tokens=2, ignore_eos=True), name):
        last = out
    return last.num_cached_tokens


def blocks_of(batches: list[tuple[int, KVEventBatch]]) -> dict[int, tuple[int | None, tuple[int, ...], Any]]:
    """A router's index: id -> (parent, tokens, extra keys)."""
    index: dict[int, tuple[int | None, tuple[int, ...], Any]] = {}
    for _, batch in batches:
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                index.clear()
            elif isinstance(event, BlockRemoved):
                for one in event.block_hashes:
                    del index[one]
            else:
                assert len(event.token_ids) == event.block_size * len(event.block_hashes)
                parent = event.parent_block_hash
                for i, one in enumerate(event.block_hashes):
                    tokens = tuple(event.token_ids[i * event.block_size : (i + 1) * event.block_size])
                    extra = event.extra_keys[i] if event.extra_keys else None
                    index[one] = (parent, tokens, extra)
                    parent = one
    return index


async def until_quiet(router: Router) -> None:
    while True:
        try:
            await router.hear(0.3)
        except AssertionError:
            return


@pytest.mark.slow
async def test_a_router_follows_the_cache_over_a_gap_and_a_killed_engine(engine: AsyncLLM, config: KvEventsConfig) -> None:
    router = Router(config)
    prompt = list(range(5, 5 + 70))
    await run(engine, prompt, "a")
    await run(engine, prompt, "b", salt="tenant")
    await until_quiet(router)
    past = router.replay(0)  # what came before the subscription
    assert isinstance(past[0][1].events[0], AllBlocksCleared)
    index = blocks_of(past)
    plain = [i for i, (parent, _, extra) in index.items() if parent is None and extra is None]
    salted = [i for i, (parent, _, extra) in index.items() if parent is None and extra == ("tenant",)]
    assert len(plain) == len(salted) == 1
    assert index[plain[0]][1] == index[salted[0]][1] == tuple(prompt[:16])
    chain, at = [], plain[0]
    while at is not None:
        chain += index[at][1]
        at = next((i for i, (parent, _, _) in index.items() if parent == at), None)
    assert chain == prompt[:64]

    assert await run(engine, prompt[:40], "c") == 32
    for n in range(8):  # more prompts than there are blocks: some are removed
        await run(engine, [100 + n] * 60, f"d{n}")
    await until_quiet(router)
    everything = router.replay(0)
    assert any(isinstance(e, BlockRemoved) for _, b in everything for e in b.events)
    numbers = [n for n, _ in everything]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert [n for n, _ in router.heard] == numbers[-len(router.heard) :]
    last = everything[-1][0]
    assert router.replay(last - 2) == everything[-3:]
    assert len(blocks_of(everything)) <= 23

    os.kill(engine.engine_pid, signal.SIGKILL)
    assert await run(engine, prompt, "e") == 0
    await until_quiet(router)
    after = router.replay(last + 1)
    assert after[0][0] == last + 1, "numbers go on"
    assert isinstance(after[0][1].events[0], AllBlocksCleared)
    assert len(blocks_of(everything + after)) == 4
    router.close()


@pytest.mark.slow
async def test_a_reset_is_published_without_a_request(engine: AsyncLLM, config: KvEventsConfig) -> None:
    router = Router(config)
    await run(engine, list(range(40)), "a")
    await until_quiet(router)
    await engine.reset_prefix_cache()
    _, batch = await router.hear()
    assert batch.events == [AllBlocksCleared()]
    assert await engine.get_kv_event_sources() == [
        {"data_parallel_rank": 0, "endpoint": config.endpoint, "replay_endpoint": config.replay_endpoint, "topic": config.topic}
    ]
    router.close()


@pytest.mark.parametrize("adapter", [b"", bytes(range(32))])
@pytest.mark.parametrize("salt", ["", "tenant", "7:x", "\udcff"])
@pytest.mark.parametrize("media", [(), ((b"d:1" * 5, 3),), ((b"\0" * 16, 0), (b"9:9:", 2))])
def test_parts_of_a_salt_are_read_back(adapter, salt, media) -> None:
    inputs, at = [], 4
    for digest, before in media:
        inputs.append(Input(kind="image", digest=digest, positions=np.arange(at - before, at + 2, dtype=np.int32)))
        at += 2
    asked = EngineRequest(
        handle=1, tokens=np.zeros(20, np.int32), prompt_len=20, sampling=TokenSampling(max_tokens=1), adapter=adapter,
        cache_salt=salt,
    )  # fmt: skip
    request = Request(1, asked.sampling, 20, (0, 0), prefix_salt(asked), True, 21, 0.0, asked.tokens, inputs=tuple(inputs))
    parts = read_salt(request.salt_of(4, 12))
    assert (parts.adapter, parts.cache_salt) == (adapter, salt)
    assert len(parts.media) == len(media)
    if len(media) == 1:
        assert parts.media == media


def test_adapters_and_media_are_in_the_extra_keys() -> None:
    event = BlocksStored(
        group=0, kind="full", window=0, block_tokens=2, ids=[8, 9], parent=None, tokens=np.arange(4, dtype=np.int32),
        adapter=b"\1" * 32, cache_salt="s", media=[[], [(b"\xab", 3)]],
    )  # fmt: skip
    made = msgspec.convert(to_wire(event, {b"\1" * 32: "poet"}.__getitem__), BlockStored)
    assert made.lora_name == "poet"
    assert made.extra_keys == [("poet", "s"), ("poet", ["ab", -3])]
    later = to_wire(msgspec.structs.replace(event, parent=7), {b"\1" * 32: "poet"}.__getitem__)
    assert later["extra_keys"][0] == ["poet"], "a salt is a key of the first block only"


def test_engines_have_ports_of_their_own_and_one_in_use_is_named(config: KvEventsConfig) -> None:
    events = KvEvents(msgspec.structs.replace(config, replay_endpoint=None), 2)
    ports = [int(s["endpoint"].rpartition(":")[2]) for s in events.sources()]
    assert ports[1] == ports[0] + 1
    with pytest.raises(ConfigError, match=r"kv_events_config: endpoint: .* cannot be bound"):
        KvEvents(config, 1)
    frame = Outputs(np.empty(0, np.int64), np.empty(0, np.int32), 0.0, kv_events=[BlocksCleared()], engine=1)
    events.publish(frame)
    events.close()


async def test_a_new_subscriber_learns_at_once_what_it_missed(config: KvEventsConfig) -> None:
    """vllm-router asks for a replay when a live batch has a number above the next, and believes one that begins at 0."""
    events = KvEvents(config, 1)
    cleared = Outputs(np.empty(0, np.int64), np.empty(0, np.int32), 0.0, kv_events=[BlocksCleared()], engine=0)
    events.publish(cleared)
    events.publish(cleared)
    asker = Router(config, subscribes=False)
    while len(asker.replay(0)) < 2:  # a thread publishes
        await asyncio.sleep(0.01)
    asker.close()
    for subscriptions in range(2):
        router = Router(config)
        number, batch = await router.hear()
        assert (number, batch.events) == (2 + subscriptions, [])
        assert [n for n, _ in router.replay(0)] == list(range(number + 1))
        router.close()
    events.close()


def test_an_engine_that_leaves_publishes_that_it_has_no_blocks(config: KvEventsConfig) -> None:
    events = KvEvents(msgspec.structs.replace(config, replay_endpoint=None), 1)
    events.resize(2)
    assert [s["data_parallel_rank"] for s in events.sources()] == [0, 1]
    with zmq.Context() as context, context.socket(zmq.SUB) as sub:
        sub.subscribe(config.topic)
        sub.rcvtimeo = 100
        sub.connect(events.sources()[1]["endpoint"].replace("*", "127.0.0.1"))
        cleared = Outputs(np.empty(0, np.int64), np.empty(0, np.int32), 0.0, kv_events=[BlocksCleared()], engine=1)
        for _ in range(100):  # until the subscription is known there
            events.publish(cleared)
            with contextlib.suppress(zmq.Again):
                sub.recv_multipart()
                break
        while True:
            with contextlib.suppress(zmq.Again):
                sub.recv_multipart()
                continue
            break
        events.resize(1)
        sub.rcvtimeo = 60_000
        while not (batch := msgspec.msgpack.decode(sub.recv_multipart()[2], type=KVEventBatch)).events:
            pass  # a subscriber's first one may come late
    assert (batch.events, batch.data_parallel_rank) == ([AllBlocksCleared()], 1)
    assert len(events.sources()) == 1
    events.close()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"enable_kv_cache_events": True, "endpoint": "5557"}, "kv_events_config: endpoint: '5557' is not an address"),
        ({"enable_kv_cache_events": True, "replay_endpoint": "tcp://*:0"}, "replay_endpoint"),
        ({"enable_kv_cache_events": True, "publisher": "nats"}, "publisher"),
        ({"buffer": 1}, "buffer_steps"),
    ],
)
def test_a_wrong_configuration_is_refused_by_field(said: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(EngineArgs(kv_events_config=said), "{}: {}".format)


def test_events_are_off_unless_enabled() -> None:
    assert read_kv_events(EngineArgs(kv_events_config={"publisher": "zmq"})) is None
    with pytest.raises(ConfigError, match="enable_prefix_caching"):
        check(EngineArgs(kv_events_config={"enable_kv_cache_events": True}, enable_prefix_caching=False), "{}: {}".format)
