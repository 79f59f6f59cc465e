"""Weight files are read while a process still imports, if the load strategy says so; and no file is read twice or in vain."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from thalweg.checkpoint import ahead
from thalweg.config import EngineArgs
from thalweg.engine.worker.stages.open import prepare, start_ahead


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in ("a.safetensors", "b.gguf"):
        (tmp_path / name).write_bytes(b"x" * 1000)
    return tmp_path


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int]]]:
    """(file, first byte) of every block read."""
    seen: list[tuple[str, int]] = []
    plain = ahead._read

    def note(file: Path, at: int, count: int) -> int:
        seen.append((file.name, at))
        return plain(file, at, count)

    monkeypatch.setattr(ahead, "_read", note)
    yield seen
    ahead.drop()


def _args(model: Path, **more: Any) -> EngineArgs:
    return EngineArgs(model=str(model), device="cpu", safetensors_prefetch_block_size=500, **more)


ALL = [("a.safetensors", 0), ("a.safetensors", 500), ("b.gguf", 0), ("b.gguf", 500)]


@pytest.mark.parametrize("strategy", ["eager", "prefetch"])
def test_reads_begin_before_the_framework_is_imported_and_go_on_while_weights_load(
    model: Path, read: list[tuple[str, int]], strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thalweg.backends.cpu import CpuPlatform

    begun: list[bool] = []
    monkeypatch.setattr(CpuPlatform, "preload", lambda self: begun.append(model in ahead._begun))
    given = _args(model, safetensors_load_strategy=strategy)
    prepare("cpu", given)
    assert begun == [True]
    ahead._begun[model].wait()
    with ahead.reading(given):
        assert sorted(read) == ALL
    assert (sorted(read), ahead._begun) == (ALL, {})


@pytest.mark.parametrize("more", [{}, {"safetensors_load_strategy": "prefetch", "load_format": "dummy"}])
def test_nothing_is_read_where_files_are_mapped_or_not_used(
    model: Path, read: list[tuple[str, int]], more: dict[str, Any]
) -> None:
    ahead.begin(_args(model, **more))
    assert (read, ahead._begun) == ([], {})


def test_a_build_that_fails_stops_the_reads(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the block at hand, which goes on when the build has already failed."""
    inside, on, seen = threading.Event(), threading.Event(), []

    def block(file: Path, at: int, count: int) -> int:
        seen.append((file.name, at))
        inside.set()
        on.wait(10)
        return 0

    monkeypatch.setattr(ahead, "_read", block)
    given = _args(model, safetensors_load_strategy="prefetch", safetensors_prefetch_num_threads=1)
    readers: list[ahead.FileReaders] = []

    def fail() -> None:
        with start_ahead(given):
            readers.extend(ahead._begun.values())
            assert inside.wait(10)
            stopped = readers[0]._stopped
            plain = stopped.set
            monkeypatch.setattr(stopped, "set", lambda: (plain(), on.set()))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (seen, ahead._begun) == (ALL[:1], {})
    assert not any(t.is_alive() for t in readers[0]._threads)


def test_a_model_that_is_not_there_is_left_to_the_loader(tmp_path: Path, read: list[tuple[str, int]]) -> None:
    for name in ("org/not-here", "x" * 4000):
        given = _args(Path(name), safetensors_load_strategy="prefetch")
        ahead.begin(given)
        with ahead.reading(given):
            pass
    assert read == []
