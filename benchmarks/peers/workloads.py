"""The requests every engine is given, and the figures their times make. Knows no engine and no process."""

from __future__ import annotations

import statistics
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from thalweg.bench.common import random_prompts

RESERVED = frozenset(range(3))
"""Ids never drawn: beginning, end and padding of the models made here."""


@dataclass(frozen=True, slots=True)
class Call:
    """Requests sent at once. lengths: own prompt tokens of each, after `prefix` tokens that all requests of the workload share.
    new: tokens to generate, exactly."""

    name: str
    lengths: tuple[int, ...]
    new: int
    prefix: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """Calls made in turn. figures: from the seconds of each call, by name, to what is reported."""

    name: str
    calls: tuple[Call, ...]
    figures: Callable[[Workload, Mapping[str, float]], dict[str, float]]

    def call(self, name: str) -> Call:
        return next(c for c in self.calls if c.name == name)

    def prompts(self, vocab: int, seed: int, repeat: int) -> list[list[list[int]]]:
        """Token ids, per call and request. Fresh in every repeat, so that no prefix is known but those of this repeat's calls;
        the same for every engine."""
        lengths = [n for c in self.calls for n in c.lengths]
        own = zlib.crc32(f"{self.name} {seed} {repeat}".encode())
        drawn = [p["prompt_token_ids"] for p in random_prompts(lengths, vocab, RESERVED, own, self.calls[0].prefix)]
        at, out = 0, []
        for c in self.calls:
            out.append(drawn[at : at + len(c.lengths)])
            at += len(c.lengths)
        return out


def _single(w: Workload, seconds: Mapping[str, float]) -> dict[str, float]:
    steps = w.call("whole").new - 1
    return {"ttft_s": seconds["first"], "decode_tok_s": steps / max(seconds["whole"] - seconds["first"], 1e-9)}


def _prefill(w: Workload, seconds: Mapping[str, float]) -> dict[str, float]:
    return {"prefill_tok_s": sum(w.call("whole").lengths) / seconds["whole"]}


def _streams(w: Workload, seconds: Mapping[str, float]) -> dict[str, float]:
    whole = w.call("whole")
    return {f"{w.name}_tok_s": len(whole.lengths) * whole.new / seconds["whole"]}


def _shared(w: Workload, seconds: Mapping[str, float]) -> dict[str, float]:
    return {"shared_cold_s": seconds["cold"], "shared_warm_s": seconds["warm"]}


MIXED = (32, 1024, 64, 256, 128, 512, 48, 768, 96, 192, 384, 80, 640, 32, 160, 320, 1024, 64, 448, 112, 224, 56, 896, 144)
"""Prompt tokens of requests that come at once: from a line to some pages, in no order."""


def _mixed(w: Workload, seconds: Mapping[str, float]) -> dict[str, float]:
    whole = w.call("whole")
    return {"mixed_tok_s": (sum(whole.lengths) + len(whole.lengths) * whole.new) / seconds["whole"]}


def workloads(scale: int = 1) -> dict[str, Workload]:
    """By name. scale: lengths are divided by it, to try a driver out; such figures are not worth quoting."""

    def n(length: int) -> int:
        return max(length // scale, 2)

    def streams(count: int) -> Workload:
        return Workload(f"streams{count}", (Call("whole", (n(128),) * count, n(128)),), _streams)

    every = (
        Workload("single", (Call("first", (n(512),), 1), Call("whole", (n(512),), n(128))), _single),
        Workload("prefill", (Call("whole", (n(2048),), 1),), _prefill),
        streams(16),
        streams(32),
        Workload("shared", tuple(Call(name, (n(32),) * 16, n(32), n(1024)) for name in ("cold", "warm")), _shared),
        Workload("mixed", (Call("whole", tuple(n(length) for length in MIXED), n(64)),), _mixed),
    )
    return {w.name: w for w in every}


START = "start"
"""Process start to first token: not a workload of a loaded engine but of a process."""
FIRST = Call("first", (32,), 1)
"""What the first token of a new process answers."""
NAMES = (*workloads(), START)


def medians(samples: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each figure over the repeats."""
    return {key: statistics.median(s[key] for s in samples) for key in samples[0]} if samples else {}


Sample = Mapping[str, Mapping[str, float]]
"""One repeat of a workload. By key, then by call: seconds; cores kept busy by the engine and by others; those the host took."""


def disturbed(sample: Sample) -> float:
    """Cores that everything else kept busy meanwhile: other processes, and the host's other guests."""
    seconds = sample["seconds"]
    taken = sum(seconds[c] * (sample["others"][c] + sample["stolen"][c]) for c in seconds)
    return taken / max(sum(seconds.values()), 1e-9)


def counted(samples: Sequence[Sample], repeats: int) -> list[Sample]:
    """Those that figures are made of: the least disturbed. Chosen by what others did, never by the time it took."""
    return sorted(samples, key=disturbed)[:repeats]
