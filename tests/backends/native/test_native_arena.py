"""Memory made ready for weights before they come: it is theirs, nobody writes into it late, and what is left over goes back."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from thalweg.backends.cpu import CpuOptions, CpuPlatform, native
from thalweg.backends.cpu.native import NativeLibrary, alloc_zeros
from thalweg.backends.cpu.native.linear import kernels
from thalweg.backends.host import process_memory
from thalweg.hal.kv import KVLayout
from thalweg.hal.platform import Place
from thalweg.hal.weights import DENSE, QTensor

MIB = 1 << 20


@pytest.fixture(autouse=True)
def alone(library: NativeLibrary) -> Iterator[None]:
    """One process has one arena; and its memory is not to shrink meanwhile by what other tests have left to the collector."""
    native.settle()
    gc.collect()
    yield
    native.settle()


def in_time(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + 60
    while not condition() and time.monotonic() < until:
        time.sleep(0.001)
    return condition()


def made_ready(size: int) -> None:
    """Expect it, and wait until all of it is there."""
    native.expect(size)
    assert in_time(lambda: native.waiting() == size)


def threads() -> set[str]:
    return {p.name for p in Path("/proc/self/task").iterdir()}


def test_what_is_expected_is_held_and_what_is_not_taken_goes_back(library: NativeLibrary) -> None:
    before, running = process_memory(), threads()
    made_ready(128 * MIB)
    assert process_memory() - before > 120 * MIB
    mine = np.frombuffer(alloc_zeros(library, 32 * MIB), np.uint8)
    assert native.waiting() == 96 * MIB
    assert not mine.any()
    native.settle()
    assert native.waiting() == 0
    assert 30 * MIB < process_memory() - before < 40 * MIB
    assert in_time(lambda: threads() <= running)  # the system lists a thread for a moment after its last instruction
    del mine
    assert process_memory() - before < 8 * MIB


@pytest.mark.slow
def test_nothing_is_written_into_memory_that_was_taken_before_it_was_ready(library: NativeLibrary) -> None:
    for turn in range(25):
        native.expect(64 * MIB)
        kept = []
        for i in range(16):
            part = np.frombuffer(alloc_zeros(library, 3 * MIB), np.uint8)
            assert not part[:: 4096 // 2].any()
            part[:] = 1 + (turn + i) % 255
            kept.append((part, 1 + (turn + i) % 255))
        native.settle()
        assert all((part == value).all() for part, value in kept)


def test_more_than_was_expected_is_served_all_the_same(library: NativeLibrary) -> None:
    made_ready(4 * MIB)
    large = np.frombuffer(alloc_zeros(library, 64 * MIB), np.uint8)
    assert native.waiting() == 4 * MIB
    large[:] = 1
    native.expect(64 * MIB)  # not before the first has been settled
    assert native.waiting() == 4 * MIB
    native.settle()
    made_ready(8 * MIB)
    assert large.all()


def test_a_weight_has_the_same_bits_wherever_it_lies(library: NativeLibrary) -> None:
    weight, x = torch.randn(700, 512), torch.randn(3, 512)
    kernel, *_ = kernels(library)
    pack = kernel.pack
    assert pack is not None

    def packed() -> object:
        return pack(QTensor(DENSE, (700, 512), {"weight": weight}))

    elsewhere = kernel.run(x, packed())
    made_ready(8 * MIB)
    there = packed()
    assert native.waiting() < 8 * MIB
    native.settle()
    assert torch.equal(kernel.run(x, there), elsewhere)


@pytest.mark.slow
def test_a_device_counts_what_waits_as_free_and_gives_it_back_with_its_first_cache(library: NativeLibrary) -> None:
    device = CpuPlatform().with_options(CpuOptions(threads=1, isa=library.level)).open(Place())
    before = device.memory_used()
    made_ready(256 * MIB)
    assert abs(device.memory_used() - before) < 16 * MIB
    parameter = device.blank((1024, 1024), "bfloat16")
    assert parameter is not None
    assert parameter.shape == (1024, 1024)
    assert native.waiting() == 254 * MIB
    assert device.blank((1024,), "bfloat16") is None
    device.alloc_kv(KVLayout((16, 4), "float32", "any"), 4)
    assert native.waiting() == 0
    made_ready(4 * MIB)
    device.close()
    assert native.waiting() == 0


def test_only_weights_worth_a_thread_that_fit_into_memory_and_are_packed_are_prepared_for(
    library: NativeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    monkeypatch.setattr("thalweg.backends.cpu.expect", told.append)
    monkeypatch.setattr("thalweg.backends.cpu.host_memory", lambda: (8 << 30, 4 << 30))
    platform = CpuPlatform()
    platform.expect(1 << 20)
    platform.expect(15 << 28)
    platform.with_options(CpuOptions(isa="none")).expect(1 << 30)
    assert told == []
    platform.expect(1 << 30)
    assert told == [1 << 30]


def test_what_was_expected_and_will_not_come_is_given_back(library: NativeLibrary) -> None:
    CpuPlatform().expect(64 * MIB)
    assert in_time(lambda: native.waiting() > 0)
    CpuPlatform().expect(0)
    assert native.waiting() == 0


def test_a_cache_is_populated_a_piece_a_call_and_keeps_what_is_in_it(library: NativeLibrary) -> None:
    device = CpuPlatform().with_options(CpuOptions(threads=1, isa=library.level)).open(Place())
    cache = device.alloc_kv(KVLayout((256, 1024), "float32", "any"), 64)  # of 1 MiB a block
    cache[:7] = 1
    before, calls = process_memory(), 1
    while device.populate([(cache, range(7, 41))]):
        calls += 1
    assert calls == (42 - 6) // 2 + 1  # whole huge pages, and one call that finds nothing left
    assert 30 * MIB < process_memory() - before < 40 * MIB
    assert not device.populate([(cache, range(9, 42))])
    while device.populate([(cache, range(60, 80))]):
        pass
    assert process_memory() - before < 44 * MIB  # none after its end, and none between
    assert bool((cache[:7] == 1).all())
    assert not bool(cache[7:].any())
    device.close()


def test_layers_lie_side_by_side_and_a_first_block_takes_little(library: NativeLibrary) -> None:
    device = CpuPlatform().with_options(CpuOptions(threads=1, isa=library.level)).open(Place())
    like = KVLayout((32, 1024), "float32", "any", apart=True)  # of 128 KiB a block
    caches = device.alloc_caches([like] * 16, [64] * 16)
    before = process_memory()
    for i, cache in enumerate(caches):
        cache[1] = i + 1
    assert process_memory() - before < 8 * MIB  # one huge page each would be 32
    while device.populate([(cache, range(1, 9)) for cache in caches]):
        pass
    assert 14 * MIB < process_memory() - before < 24 * MIB  # eight blocks of all
    assert [float(cache.sum()) / cache[1].numel() for cache in caches] == list(range(1, 17))
    device.close()


def test_many_caches_are_populated_within_a_bound_for_all(library: NativeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thalweg.backends.cpu.device.POPULATED", 32 * MIB)
    device = CpuPlatform().with_options(CpuOptions(threads=1, isa=library.level)).open(Place())
    caches = [(device.alloc_kv(KVLayout((256, 1024), "float32", "any"), 64), range(64)) for _ in range(4)]
    before = process_memory()
    while device.populate(caches):
        pass
    assert 30 * MIB < process_memory() - before < 40 * MIB
    device.close()
