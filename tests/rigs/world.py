"""A control plane on the hash model, with every token, finish and prompt score compared with the oracle as it comes out.

`launch` is either eager (a step runs when launched) or deferred (it runs when its result, or that of a later step, is
read, as on a device that is behind the host: then every array must have stayed as it was launched).
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import msgspec
import numpy as np
from oracle import Oracle
from router_index import RouterIndex
from stores import SimLane

from thalweg.backends.null import NullOptions, NullPlatform
from thalweg.backends.null.hashing import STATE
from thalweg.config import CacheConfig, DeviceConfig, EngineConfig, ModelConfig, SchedulerConfig
from thalweg.drafters import SpeculationConfig
from thalweg.engine.control.cache.prefix import keyed_hash
from thalweg.engine.control.core import EngineCore
from thalweg.engine.control.executor import LaunchOnlyExecutor
from thalweg.engine.control.slots import Slots
from thalweg.engine.control.speculation.drafter import DeviceDrafter, Drafter, Proposals
from thalweg.engine.control.store.transfers import StoreConnection
from thalweg.engine.messages import EngineRequest, Outputs, TokenSampling
from thalweg.hal.kv import KVSpec
from thalweg.hal.parts.adapters import Adapters
from thalweg.hal.parts.drafts import Drafts
from thalweg.hal.parts.proposing import Proposing
from thalweg.hal.platform import Place
from thalweg.hal.step import StateBox, StepBatch, StepResult

KINDS = {-1: "state", 0: "full", 1: "window"}


def make_config(
    *, vocab=64, max_len=64, block_tokens=4, blocks=40, windows=(0,), max_seqs=8, max_tokens=32, depth=2, caching=True,
    spare=False, **scheduler,
) -> EngineConfig:  # fmt: skip
    """windows: per group, -1 = a recurrent state. spare: it has spare blocks, as where there are drafts. block_tokens and
    blocks: of all groups, or per group."""
    sizes = (block_tokens,) * len(windows) if isinstance(block_tokens, int) else tuple(block_tokens)
    groups = tuple(
        KVSpec(KINDS[(w > 0) - (w < 0)], size, 8 * size, (g,), window=max(w, 0), spare=spare and w < 0)
        for g, (w, size) in enumerate(zip(windows, sizes, strict=True))
    )
    counts = (blocks,) * len(groups) if isinstance(blocks, int) else tuple(blocks)
    return EngineConfig(
        model=ModelConfig(
            path="", architecture="null", dtype="float32", max_len=max_len, vocab=vocab, seed=0, load_format="dummy",
            logprobs_mode="raw_logprobs", max_logprobs=20,
        ),
        device=DeviceConfig(platform="null"),
        cache=CacheConfig(block_tokens=sizes[0], groups=groups, blocks=counts, prefix_caching=caching),
        scheduler=SchedulerConfig(max_seqs=max_seqs, token_budget=max_tokens, pipeline_depth=depth, **scheduler),
    )  # fmt: skip


@dataclass
class Later:
    """A step that runs when its turn comes in the queue."""

    queue: deque
    value: StepResult | np.ndarray | None = None

    def ready(self) -> bool:
        return self.value is not None

    def result(self) -> StepResult:
        while self.value is None:
            self.queue.popleft()()
        return self.value


@dataclass
class Tracked:
    request: EngineRequest
    tokens: list[int]
    """What must come out, from prompt_len on."""
    reason: str
    stop_id: int
    hashes: list[int]
    got: int = 0
    scored: int = 1
    finished: str | None = None
    rounds: bytes = b""
    may_fail: bool = False
    log: list[int] = field(default_factory=list)


def windows_of(config: EngineConfig) -> tuple[int, ...]:
    return tuple(STATE if g.kind == "state" else g.window for g in config.cache.groups)


def ngrams(tokens: int, low: int, high: int) -> SpeculationConfig:
    return SpeculationConfig(tokens=tokens, options={"prompt_lookup_min": low, "prompt_lookup_max": high})


def suffixes(tokens: int, depth=24, requests=10_000, factor=1.0, least=0.1) -> SpeculationConfig:
    options = {"max_tree_depth": depth, "max_cached_requests": requests, "max_spec_factor": factor, "min_token_prob": least}
    return SpeculationConfig(
        method="suffix", tokens=tokens, options={f"suffix_decoding_{name}": v for name, v in options.items()}
    )


class Guesser(Drafter):
    """A drafter that knows what will come out, and says it as often as it is lucky."""

    def __init__(self, world: World, slots: Slots, most: int, luck: float) -> None:
        self.world, self.slots, self.most, self.luck = world, slots, most, luck
        self.rng = random.Random(most)

    def propose(self, slots, most) -> Proposals:
        return Proposals.of([self.guess(slot, n) for slot, n in zip(slots.tolist(), most.tolist(), strict=True)])

    def guess(self, slot: int, most: int) -> list[int]:
        s, rng = self.slots, self.rng
        assert s.known[slot] == s.length[slot] == s.scheduled[slot] + 1, "drafts without every token before them"
        assert not s.proposed[slot]
        t = self.world.tracked[int(s.handle[slot])]
        said = int(s.known[slot]) - t.request.prompt_len
        vocab = self.world.config.model.vocab
        right = [*t.tokens[said:], *(rng.randrange(vocab) for _ in range(most))][: rng.randrange(most + 1)]
        return [token if rng.random() < self.luck else rng.randrange(vocab) for token in right]

    def is_promising(self, slots):
        return np.array([self.rng.random() < 0.6 for _ in slots], bool)

    def learn(self, slots, accepted) -> None:
        assert slots.size == accepted.size
        assert ((accepted >= 0) & (accepted <= self.most)).all()


class Recorded(LaunchOnlyExecutor):
    """Its operations are those of the world."""

    def __init__(self, world: World, *args) -> None:
        super().__init__(*args)
        self.world = world

    def call(self, operation: str, /, *args) -> list:
        return [self.world.write_adapter(*args)] if operation == "write_adapter" else super().call(operation, *args)


class Handed(DeviceDrafter):
    """What the step before proposed, as `World.proposals` has it. The device's side is the world itself."""

    proposer = "world:World"

    def is_promising(self, slots):
        return slots % 3 > 0


class World:
    def __init__(
        self, config: EngineConfig, *, salt=0, deferred=False, poison=False, check=True, share_from=1, hash_fn=None, clock=None,
        drafts=0, luck=0.7, encoder=None, on_device=False, adapters=0, loaded=(), store=None, role="kv_both", events=False,
    ) -> None:  # fmt: skip
        """adapters: slots for them. loaded: digests that requests may name. drafts: at most so many guesses of a sequence in a
        step, instead of what the configuration says; luck: the share of them that are right. store: a `stores.FaultyStore`,
        which outlives the core. events: a router's index follows the cache."""
        self.config, self.check = config, check
        self.windows = windows_of(config)
        self.oracle = Oracle(salt, config.model.vocab, self.windows)
        self.options = NullOptions(vocab=config.model.vocab, windows=self.windows, salt=salt)
        self.deferred, self.poison = deferred, poison
        self.kwargs = {"share_from": share_from, "hash_fn": hash_fn} | ({"clock": clock} if clock else {})
        self.encoder = encoder
        self.luck, self.rng = luck, random.Random(drafts)
        if drafts and on_device:
            handed = SpeculationConfig(method="handed", tokens=drafts)
            self.kwargs["drafter"] = lambda slots: Handed(handed, slots)
        elif drafts:
            self.kwargs["drafter"] = lambda slots: Guesser(self, slots, drafts, luck)
        self.loaded, self.writes = loaded, list[tuple[int, bytes]]()
        self.content = [b""] * (adapters + 1)
        """The adapter in each slot, as of the step that runs."""
        if store is not None:
            lanes = lambda name: SimLane(store, clock)  # noqa: E731
            self.kwargs |= {
                "store": StoreConnection(store, self, 4.0, lanes, role),
                "hash_fn": hash_fn or keyed_hash(b"one secret"),
            }
            self.block_bytes = [8 * (2 if g.kind == "state" else g.block_tokens) for g in config.cache.groups]
            self.signature = b"the hash model"
        if events:
            self.kwargs["kv_events"] = True
        self.index = RouterIndex() if events else None
        self.tracked: dict[int, Tracked] = {}
        self.batches = 0
        self.sick: dict[int, int] = {}
        """Handle -> how many rows of its own to return as not a number."""
        self.batch_log: list[StepBatch] | None = None
        self.boot()

    def boot(self) -> None:
        """A new core and a new device, as after a crash."""
        config = self.config
        self.device = NullPlatform().with_options(self.options).open(Place())
        state = {
            "kv": [
                np.zeros((n, 2 if g.kind == "state" else g.block_tokens), np.int64)
                for n, g in zip(config.cache.blocks, config.cache.groups, strict=True)
            ],
            "history": np.zeros((config.scheduler.max_seqs + 1, config.model.max_len + 1), np.int32),
        }
        self.kv = state["kv"]
        self.run = self.device.compile(None, None, StateBox(state), None, None)
        self.queue: deque = deque()
        self.spoils: list = []
        """What new holders write into their blocks before they read them."""
        self.core = EngineCore(Recorded(self, config, self.launch, self.encoder), **self.kwargs)
        for digest in self.loaded:
            self.core.adapters.load(digest)
        if self.core._transfers is not None:
            self.core._transfers.departures.per_step = self.kwargs["store"].store.per_step
        if self.poison:
            for g, group in enumerate(self.core.kv.groups):
                self._poison_on_release(group.pool, self.kv[g])

    def _poison_on_release(self, pool, kv) -> None:
        release, take = pool.release, pool.take

        def spoil(block: int) -> None:
            self.spoils.append(lambda: self.device.poison(kv, block))

        def released(block: int) -> None:
            release(block)
            if not pool.references[block] and not pool._findable[block]:
                spoil(block)

        def taken() -> int:
            block = take()
            spoil(block)
            return block

        pool.release, pool.take = released, taken

    def write_adapter(self, slot: int, digest: bytes) -> int:
        self.writes.append((slot, digest))
        action = lambda: self.content.__setitem__(slot, digest)  # noqa: E731
        self.queue.append(action) if self.deferred else action()
        return 0

    def spoil_blocks(self) -> None:
        self.queue.extend(self.spoils)
        self.spoils.clear()

    def export(self, group: int, blocks: np.ndarray) -> Later:
        """As `mover.Mover`, with the blocks as they are when the export's turn comes."""
        blocks, later = blocks.copy(), Later(self.queue)

        def copy() -> None:
            later.value = self.device.export([self.kv[group]], blocks).result()

        self.queue.append(copy)
        if not self.deferred:
            later.result()
        return later

    def import_(self, group: int, blocks: np.ndarray, rows: np.ndarray) -> None:
        self.spoil_blocks()
        blocks, rows = blocks.copy(), rows.copy()
        self.queue.append(lambda: self.device.import_([self.kv[group]], blocks, rows))

    def launch(self, batch: StepBatch) -> Later:
        self.spoil_blocks()
        self.batches += 1
        if self.check:
            self.check_batch(batch)
        if self.batch_log is not None:
            self.batch_log.append(batch)
        later = Later(self.queue)
        handles = [self.core.slots.handle[s] for s in batch.slots]

        wanted, part = [self.tracked[h].request.adapter for h in handles], batch.get(Adapters)
        assert (part is None) == (not any(wanted)), "a step has the part if a sequence has an adapter"

        def execute() -> None:
            for row, digest in enumerate(wanted) if part is not None else ():
                assert self.content[part.slot[row]] == digest, "a sequence runs with another's adapter"
            result = self.run(batch).result()
            sick = [row for row, h in enumerate(handles) if self.sick.get(int(h), 0) > 0]
            if sick:
                result.invalid = np.zeros(batch.slots.size, bool)
                for row in sick:
                    self.sick[int(handles[row])] -= 1
                    result.invalid[row] = True
                    result.tokens[row] = 0
            if (tail := batch.get(Proposing)) is not None:
                result.drafts = self.proposals(handles, batch, result, tail.level)
            later.value = result

        self.queue.append(execute)
        if not self.deferred:
            later.result()
        return later

    def proposals(self, handles: list[int], batch: StepBatch, result: StepResult, most: int) -> np.ndarray:
        """What comes after what the step returns of each sequence, as often as there is luck; -1 ends it."""
        out = np.full((batch.slots.size, most), -1, np.int32)
        for row, handle in enumerate(map(int, handles)):
            if not (count := int(result.counts[row])) or handle not in self.tracked:
                continue
            t, wrong = self.tracked[handle], int(batch.query[row])
            if (part := batch.get(Drafts)) is not None:
                wrong -= int((part.pick[row] >= 0).sum())
            said = int(batch.context[row]) + wrong + count - t.request.prompt_len
            for i, token in enumerate(t.tokens[said : said + self.rng.randrange(most + 1)]):
                out[row, i] = token if self.rng.random() < self.luck else self.rng.randrange(self.config.model.vocab)
        return out

    def check_batch(self, batch: StepBatch) -> None:
        batch.check()
        s, config = self.core.slots, self.config
        assert batch.tokens.size <= config.scheduler.token_budget
        assert batch.slots.size <= config.scheduler.max_seqs
        assert (batch.slots > 0).all()
        logprobs = max(int(s.logprobs[slot]) for slot in batch.slots)
        inferred = batch.infer_features(logprobs)
        assert batch.features == inferred, (batch.features, inferred)
        assert batch.uniform == 0 or (batch.query == batch.uniform).all()
        for table, g in zip(batch.block_tables, self.core.kv.groups, strict=True):
            bt, window = g.spec.block_tokens, g.spec.window
            for row in range(batch.slots.size):
                c, q = int(batch.context[row]), int(batch.query[row])
                if g.spec.kind == "state":
                    assert table.shape[1] == 2 + g.spec.spare
                    assert table[row, 1], "a step writes its state to scratch"
                    assert table[row, 0] or not c, "a step reads its state from scratch"
                    continue
                first = max(0, c - window + 1) // bt if window else 0
                assert table[row, first : -(-(c + q) // bt)].all(), "a block the step needs is scratch"

    # ------------------------------------------------------------------ driving

    def submit(self, request: EngineRequest) -> None:
        tokens, reason, stop_id = self.oracle.generate(request, self.config.model.max_len)
        prompt = request.tokens[: request.prompt_len].tolist()
        hashes = self.oracle.hashes(prompt + tokens)
        done = request.tokens.size - request.prompt_len
        self.tracked[request.handle] = Tracked(request, tokens, reason, stop_id, hashes, got=done)
        self.core.add([request])

    def abort(self, handle: int) -> None:
        self.core.abort([handle])

    def step(self) -> Outputs | None:
        out = self.core.step()
        if self.check:
            self.core.check()
        if out is not None:
            self.verify(out)
            if self.index is not None:
                self.index.follow(out, self.core)
        return out

    def drain(self, most: int = 100_000) -> None:
        for _ in range(most):
            if not self.core.has_work:
                break
            self.step()
        assert not self.core.has_work, "not finished"
        unfinished = [h for h, t in self.tracked.items() if t.finished is None]
        assert not unfinished, f"requests never finished: {unfinished[:5]}"
        self.idle()

    def idle(self) -> None:
        """No block, slot or claim is left behind."""
        self.core.check()
        assert all(g.pool.blocks_held == 0 for g in self.core.kv.groups), "blocks leaked"
        assert self.core.slots.available == self.config.scheduler.max_seqs, "slots leaked"
        assert not self.core.scheduler._computing, "claims leaked"
        assert self.core._transfers is None or not self.core._transfers.waiting, "a request that is gone waits for the store"

    # ------------------------------------------------------------------ comparing

    def verify(self, out: Outputs) -> None:
        for i, (handle, token) in enumerate(zip(out.handles.tolist(), out.tokens.tolist(), strict=True)):
            t = self.tracked[handle]
            assert t.finished is None, f"{handle}: a token after the end"
            assert t.got < len(t.tokens), f"{handle}: a token too many"
            assert token == t.tokens[t.got], f"{handle}: token {t.got} is {token}, expected {t.tokens[t.got]}"
            t.got += 1
            t.log.append(i)
        self.verify_logprobs(out)
        for scores in out.prompt_scores:
            self.verify_scores(scores)
        for f in out.finished:
            t = self.tracked[f.handle]
            assert t.finished is None, f"{f.handle}: finished twice"
            t.finished, t.rounds = f.reason, f.rounds
            if f.reason in ("stop", "length"):
                assert (t.got, f.reason, f.stop_id) == (len(t.tokens), t.reason, t.stop_id), f"{f.handle}: ended wrongly"
                if t.request.sampling.prompt_logprobs >= 0 and not t.request.hand_over:  # a crash before its end forgets them
                    assert t.scored == t.request.prompt_len, f"{f.handle}: {t.scored} of {t.request.prompt_len} scored"
            elif f.reason == "error":
                assert t.may_fail, f"{f.handle}: {f.error}"
                assert f.error
            else:
                assert f.reason == "abort"

    def verify_logprobs(self, out: Outputs) -> None:
        wanted = [i for i, h in enumerate(out.handles.tolist()) if self.tracked[h].request.sampling.logprobs >= 0]
        assert wanted == ([] if out.logprobs is None else out.logprobs.rows.tolist())
        seen: dict[int, int] = {}
        for m, i in enumerate(wanted):
            handle = int(out.handles[i])
            t = self.tracked[handle]
            seen[handle] = seen.get(handle, 0) + 1
            later = out.handles.tolist().count(handle) - seen[handle]
            at = t.request.prompt_len + t.got - 1 - later  # position of the token
            assert out.logprobs.tokens[m, 0] == out.tokens[i]
            assert out.logprobs.tokens.shape[1] >= 1 + t.request.sampling.logprobs
            assert abs(out.logprobs.values[m, 0] - self.oracle.value(t.hashes[at - 1], int(out.tokens[i]))) < 1e-6

    def verify_scores(self, scores) -> None:
        t = self.tracked[scores.handle]
        assert scores.start == t.scored, f"{scores.handle}: scores from {scores.start}, expected from {t.scored}"
        assert scores.tokens.shape[1] == 1 + t.request.sampling.prompt_logprobs
        for i in range(len(scores.ranks)):
            p = scores.start + i
            assert scores.tokens[i, 0] == t.request.tokens[p]
            assert abs(scores.values[i, 0] - self.oracle.value(t.hashes[p - 1], int(t.request.tokens[p]))) < 1e-6
        t.scored += len(scores.ranks)


# ---------------------------------------------------------------- random worlds


def random_config(rng: random.Random) -> EngineConfig:
    bt: int | tuple[int, ...] = rng.choice([1, 2, 3, 4, 8])
    max_len = rng.randrange(12, 72)
    some = rng.randrange(2, 20)
    windows = rng.choice(
        [(0,), (0,), (0,), (0, some), (some,), (0, 0), (5, 0, 11), (0, -1), (0, -1), (-1,), (-1, some), (0, -1, some, -1)]
    )
    if rng.random() < 0.3:
        bt = tuple(rng.choice([1, 2, 3, 4, 6, 8]) for _ in windows)
    sizes = bt if isinstance(bt, tuple) else (bt,) * len(windows)
    max_tokens = rng.choice([3, 8, 16, 33, 64])
    chunked = rng.random() < 0.8
    if not chunked:
        max_tokens = max(max_tokens, max_len)
    most = [-(-max_len // size) if w >= 0 else rng.choice([2, 3, 5]) for w, size in zip(windows, sizes, strict=True)]
    blocks = tuple(n + 1 + rng.choice([0, 0, 1, 3, n]) for n in most)
    lookup = rng.randrange(1, 4)
    drafts = ngrams(rng.randrange(1, 7), rng.randrange(1, lookup + 1), lookup)
    return make_config(
        vocab=rng.choice([3, 17, 40, 101]), speculation=rng.choice([None, drafts, suffixes(5, 6, 3)]), spare=True,
        max_len=max_len, block_tokens=bt, blocks=blocks, windows=windows,
        max_seqs=rng.choice([1, 3, 6, 10]), max_tokens=max_tokens, depth=rng.randrange(1, 4), caching=rng.random() < 0.85,
        policy=rng.choice(["fcfs", "priority"]), chunked_prefill=chunked, max_partial_prefills=rng.randrange(1, 4),
        max_long_partial_prefills=rng.randrange(1, 3), long_prefill_threshold=rng.choice([0, 0, 2, 7]),
    )  # fmt: skip


def random_sampling(rng: random.Random, vocab: int, max_len: int) -> TokenSampling:
    ids = lambda most: tuple(rng.randrange(vocab) for _ in range(rng.randrange(most)))  # noqa: E731
    max_tokens = rng.choice([1, 2, rng.randrange(1, 12), rng.randrange(1, max_len + 1)])
    p: dict = {"max_tokens": max_tokens}
    if rng.random() < 0.4:
        p |= {
            "eos_ids": ids(3),
            "stop_ids": ids(3),
            "min_tokens": rng.randrange(0, max_tokens + 1) if vocab > 20 and rng.random() < 0.5 else 0,
        }
        if vocab > 20 and rng.random() < 0.2:
            p |= {"stop_ids": tuple(rng.sample(range(vocab), 10))}
    if rng.random() < 0.35:  # nothing per token: such sequences may have drafts
        return TokenSampling(**(p | {"min_tokens": 0}))
    if vocab > 20 and rng.random() < 0.3:
        p["logit_bias"] = tuple((t, rng.choice([float("-inf"), 1.5])) for t in ids(3))
    if vocab > 20 and rng.random() < 0.2:
        p["bad_words"] = tuple(w for w in (ids(4) for _ in range(5)) if w)
    if vocab > 20 and rng.random() < 0.2:
        p["allowed_ids"] = tuple(sorted(set(rng.sample(range(vocab), vocab - 4))))
    if rng.random() < 0.3:
        p |= {"temperature": 0.5, "top_k": rng.choice([0, 3]), "repetition_penalty": rng.choice([1.0, 1.2])}
    if rng.random() < 0.3:
        p["logprobs"] = rng.randrange(0, 3)
    if rng.random() < 0.2:
        p["prompt_logprobs"] = rng.randrange(0, 3)
    return TokenSampling(**p)


def biting(rng: random.Random, p: TokenSampling, tokens: list[int], oracle: Oracle) -> TokenSampling:
    """Stop ids, minimum lengths and bad words that concern what the model is about to say."""
    h, seq = oracle.hashes(tokens), list(tokens)
    for _ in range(min(4, p.max_tokens)):
        seq.append(oracle.pick(h, sum(h)))
        h = oracle.hashes(seq)
    said = seq[len(tokens) :]
    if rng.random() < 0.5:
        stops = tuple(rng.sample(said, rng.randrange(1, len(said) + 1)))
        return msgspec.structs.replace(
            p, eos_ids=stops[:1], stop_ids=stops[1:], min_tokens=rng.randrange(p.max_tokens + 1), allowed_ids=()
        )
    tail = rng.randrange(1, 5)
    return msgspec.structs.replace(p, bad_words=((*tokens[-tail:], said[0]), (said[0],))[: rng.randrange(1, 3)])


def random_request(
    rng: random.Random, handle: int, config: EngineConfig, stems: list[list[int]], oracle: Oracle
) -> EngineRequest:
    """Prompts begin with a few shared stems, or with their own beginnings, so prefixes are found at every length."""
    vocab, max_len = config.model.vocab, config.model.max_len
    tokens = list(rng.choice(stems)) if stems and rng.random() < 0.7 else []
    tokens = tokens[: rng.randrange(len(tokens) + 1)] if rng.random() < 0.5 else tokens
    tokens += [rng.randrange(vocab) for _ in range(rng.choice([0, 1, 2, rng.randrange(max_len)]))]
    tokens = tokens[: max_len - 1] or [rng.randrange(vocab)]
    sampling = random_sampling(rng, vocab, max_len)
    if config.scheduler.max_seqs == 10 and rng.random() < 0.8:  # many short prompts that grow long: preemption
        tokens, sampling = tokens[:4], msgspec.structs.replace(sampling, max_tokens=max_len)
    if vocab > 20 and rng.random() < 0.4:
        sampling = biting(rng, sampling, tokens, oracle)
    if rng.random() < 0.1 and len(stems) < 8:
        stems.append(tokens)
    return EngineRequest(
        handle=handle, tokens=np.array(tokens, np.int32), prompt_len=len(tokens),
        sampling=sampling, priority=rng.randrange(3), cache_salt=rng.choice(["", "", "a", "b"]),
        read_prefix_cache=rng.random() < 0.9, hand_over=handle % 4 == 0, retain=float(handle % 3),
    )  # fmt: skip
