"""Weights read by several threads: in order, within bounds, the same as read one by one, and what goes wrong is said."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from thalweg.backends.torch_gpu import arrival
from thalweg.backends.torch_gpu.host import HostRuntime
from thalweg.backends.torch_gpu.testing import HostGpuOptions, HostGpuPlatform
from thalweg.checkpoint import safetensors
from thalweg.checkpoint.pieces import SlicedCheckpoint, TensorPiece
from thalweg.errors import CheckpointError, DeviceError
from thalweg.hal.comm import Mesh
from thalweg.hal.device import FileArray
from thalweg.hal.platform import Place


class Numbers:
    """Bytes that say where they are. Nobody but the threads of the arrival may ask for them."""

    def __init__(self, count: int, first: int = 0, fails: int = -1) -> None:
        self.count, self._first, self._fails = count, first, fails

    def into(self, at: int, buffer: np.ndarray) -> None:
        assert threading.current_thread().name.startswith("weights")
        if at <= self._fails < at + len(buffer):
            raise CheckpointError(f"byte {self._fails} is gone")
        buffer[:] = (self._first + at + np.arange(len(buffer))) % 251


def _wanted(*sizes: int, **more: Any) -> list[FileArray]:
    return [
        FileArray((n,), "uint8", [Numbers(n // 3, i, **more), Numbers(n - n // 3, i + n // 3)]) for i, n in enumerate(sizes)
    ]


def _expected(number: int, n: int) -> torch.Tensor:
    return ((number + torch.arange(n)) % 251).to(torch.uint8)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival, "PIECE", 64)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("late", [False, True])
def test_parameters_arrive_in_order_and_whole_through_few_buffers(small: None, threads: int, late: bool) -> None:
    """Late streams read a buffer as late as they may: one that was filled again too soon would show."""
    runtime, made = HostRuntime(late=late), []
    pinned, sizes = runtime.allocate_pinned, (1000, 1, 0, 64, 130, 700)

    def counted(n: int) -> torch.Tensor:
        made.append(n)
        return pinned(n)

    runtime.allocate_pinned = counted  # type: ignore[method-assign]
    got = list(arrival.WeightStreamer(runtime, _wanted(*sizes), threads).run())
    runtime.synchronize()
    assert [torch.equal(g, _expected(i, n)) for i, (g, n) in enumerate(zip(got, sizes, strict=True))] == [True] * len(sizes)
    assert len(made) <= threads + arrival.LEAST
    assert not [t for t in threading.enumerate() if t.name.startswith("weights")]


def test_what_the_compute_stream_does_next_comes_after_the_copies(small: None) -> None:
    runtime, sums = HostRuntime(late=True), []
    for array in arrival.WeightStreamer(runtime, _wanted(300, 200), 2).run():
        runtime.compute.run(lambda a=array: sums.append(int(a.sum())))
    runtime.synchronize()
    assert sums == [int(_expected(i, n).sum()) for i, n in enumerate((300, 200))]


def test_an_error_of_a_thread_reaches_the_caller_and_ends_the_others(small: None) -> None:
    arrays = arrival.WeightStreamer(HostRuntime(), [*_wanted(100), *_wanted(900, fails=200)], 3).run()
    next(arrays)
    with pytest.raises(CheckpointError, match="byte 200 is gone"):
        next(arrays)
    assert not [t for t in threading.enumerate() if t.name.startswith("weights")]


def test_a_caller_that_stops_early_leaves_no_thread(small: None) -> None:
    arrays = arrival.WeightStreamer(HostRuntime(), _wanted(900, 900, 900), 2).run()
    next(arrays)
    arrays.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("weights")]


@pytest.mark.parametrize("room", [1, 3])
def test_too_little_pinned_memory_means_fewer_buffers_or_an_error_with_a_remedy(small: None, room: int) -> None:
    runtime, left = HostRuntime(), [room]
    pinned = runtime.allocate_pinned

    def scarce(n: int) -> torch.Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("out of memory")
        return pinned(n)

    runtime.allocate_pinned = scarce  # type: ignore[method-assign]
    arrays = arrival.WeightStreamer(runtime, _wanted(900, 300), 6).run()
    if room < arrival.LEAST:
        with pytest.raises(DeviceError, match='"readers": 0'):
            list(arrays)
    else:
        got = list(arrays)
        runtime.synchronize()
        assert torch.equal(got[0], _expected(0, 900))


def test_memory_of_the_device_that_runs_out_is_the_callers_to_hear(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [*_wanted(100), FileArray((1 << 60,), "uint8", [Numbers(0)])]
    arrays = arrival.WeightStreamer(HostRuntime(), wanted, 2).run()
    next(arrays)
    with pytest.raises(RuntimeError, match="memory"):
        next(arrays)
    assert not [t for t in threading.enumerate() if t.name.startswith("weights")]


def test_a_file_that_shrinks_while_it_is_read_is_named(tmp_path: Path) -> None:
    save_file({"a": torch.arange(1000, dtype=torch.int32)}, tmp_path / "model.safetensors")
    span = safetensors.open_checkpoint(tmp_path).span("a", slice(500, 1000))
    assert span is not None
    buffer = np.empty(2000, np.uint8)
    span.into(0, buffer)
    assert buffer.view(np.int32).tolist() == list(range(500, 1000))
    with (tmp_path / "model.safetensors").open("r+b") as f:
        f.truncate(3000)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: truncated at byte 3000 while it was read"):
        span.into(0, buffer)


def test_the_bytes_of_a_tensor_are_what_reading_it_gives(tmp_path: Path) -> None:
    """Of tensors, and of pieces of them: a matrix of several, some rows, heads whose rows lie otherwise."""
    whole = {"a": torch.randn(6, 4), "b": torch.randn(3, 8, 4), "c": torch.randn(()), "d": torch.randn(5)}
    save_file(whole, tmp_path / "model.safetensors")
    files = safetensors.open_checkpoint(tmp_path)
    made = {
        "a": TensorPiece("a", (6, 4)), "a2": TensorPiece("a", (2, 4), first=3), "b1": TensorPiece("b", (8, 4), 1),
        "b2": TensorPiece("b", (3, 4), 2, 5),
        "c": TensorPiece("c", ()), "d": TensorPiece("d", (5,)), "turned": TensorPiece("a", (6, 4), heads=1),
    }  # fmt: skip
    pieces = SlicedCheckpoint(files, made)
    assert pieces.span("turned") is None
    for holder, names in ((files, files.names), (pieces, [n for n in made if n != "turned"])):
        for name in names:
            for rows in (None, slice(1, 2)) if holder.entry(name)[1] else (None,):
                span, want = holder.span(name, rows), holder.read(name, rows)
                assert span is not None
                got = np.empty(span.count, np.uint8)
                span.into(0, got)
                assert got.tobytes() == np.ascontiguousarray(want).tobytes(), (name, rows)


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_a_model_holds_the_same_weights_whoever_reads_them(quantization: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundled one, whose embedding is its output matrix too. All it has comes that way."""
    from thalweg.models.load import _DirectLoads

    taken: list[bool] = []
    take = _DirectLoads.take

    def watched(self: Any, spec: Any) -> Any:
        got = take(self, spec)
        if spec.sources:
            taken.append(got is not None)
        return got

    monkeypatch.setattr(_DirectLoads, "take", watched)
    held = [_weights(readers, quantization) for readers in (0, 3)]
    assert len(held[0]) > 10
    assert [torch.equal(a, b) for a, b in zip(*held, strict=True)] == [True] * len(held[0])
    assert not any(taken[: len(taken) // 2])
    assert all(taken[len(taken) // 2 :])


def _weights(readers: int, quantization: str | None) -> list[torch.Tensor]:
    from thalweg.backends.tensors import tensors_in
    from thalweg.checkpoint.config import read_config
    from thalweg.checkpoint.hub import resolve_model
    from thalweg.hal.op import Binder
    from thalweg.models.build import build
    from thalweg.models.load import load_params
    from thalweg.quantization import registry

    platform = HostGpuPlatform()
    platform.options = HostGpuOptions(readers=readers)
    path, device = resolve_model("thalweg-nano"), platform.open(Place())
    model = build(
        read_config(path, None, registry.check), binder=Binder(device.kernels), attention=device.attention,
        mesh=Mesh(device.comm), dtype="bfloat16", max_len=256, block_tokens=16,
        quantization=quantization,
    )  # fmt: skip
    params = load_params(model, path, device, progress=False)
    device.synchronize()
    return list(tensors_in(params))
