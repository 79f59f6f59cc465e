"""A pytest plugin: the compiled kernels of another architecture, in a process run by an emulator, under this process's tests.

`Library` and everything above it stay as they are. Only `native._load` gives an object whose functions are called by pipe
(driver.cpp). Pages of this process that a kernel touches are sent on demand, and bytes that it changed are written back. So the
ordinary tests, whatever they pass, hold the kernels of that architecture to what torch computes here.

`ci/emulate aarch64` builds the driver and names it in THALWEG_DRIVER, a command line.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import shlex
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thalweg.backends.cpu import native

PAGE, WINDOW, INTEGERS, FLOATS = 4096, 16, 20, 8
NAMES = tuple(native._SIGNATURES)
"""In the order of the driver's table: FUNCTIONS is made of them."""
FUNCTIONS = "".join(f"X({name})" for name in NAMES)
MOVED = ("thalweg_take", "thalweg_give")
"""Memory of caches, which Python writes too, is this process's."""
ENDS = ("thalweg_free", "thalweg_close")
APART = {
    "test_a_file_that_is_no_library_or_of_another_version_is_refused": "loads files",
    "test_the_library_is_there_before_torchs_begins_to_load_and_is_not_asked_for_again": "loads files",
    "test_without_a_library_torch_serves_and_the_plan_says_why": "loads files",
    "test_ranks.py": "ranks share files, whose descriptors are this process's",
    "test_native_arena.py": "the arena and its pages belong to the other process",
    "test_a_kept_weight_is_mapped_as_it_was_packed": "files are mapped into this process",
    "test_native_kept.py": "files are mapped into this process, and weights lie in the other",
}
"""Tests that say nothing about kernels and need the library in this process, by name or file: why."""


class Far:
    """The functions of a library in the other process, by name."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin
        assert self._process.stdout
        self._to, self._from = self._process.stdin, self._process.stdout
        self._memory = os.open("/proc/self/mem", os.O_RDONLY)
        self._lock, self._owner = threading.Lock(), 0
        self._later: list[tuple[str, tuple[Any, ...]]] = []
        libc = ctypes.CDLL(None)
        self._map, self._unmap = libc.mmap, libc.munmap
        self._map.restype, self._map.argtypes = (
            ctypes.c_void_p,
            [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long],
        )
        self._unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.calls = self.pages = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in native._SIGNATURES:
            raise AttributeError(name)
        if name == "thalweg_take":
            return lambda size: self._map(None, size, 3, 0x22, -1, 0)  # read and write, private and of no file
        if name == "thalweg_give":
            return lambda address, size: self._unmap(address, size)
        return lambda *arguments: self._call(name, arguments)

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if self._process.poll() is not None:
            if name in ENDS:
                return None
            pytest.exit(f"the other process has ended ({self._process.returncode})", 3)
        me = threading.get_ident()
        if self._owner == me:  # a finalizer, while a call of this thread is under way
            self._later.append((name, arguments))
            return None
        with self._lock:
            self._owner = me
            try:
                while self._later:
                    self._one(*self._later.pop())
                return self._one(name, arguments)
            finally:
                self._owner = 0

    def _one(self, name: str, arguments: tuple[Any, ...]) -> Any:
        kind, kinds = native._SIGNATURES[name]
        if len(arguments) != len(kinds):
            raise TypeError(f"{name} takes {len(kinds)} arguments, not {len(arguments)}")
        whole = [_whole(a) for k, a in zip(kinds, arguments, strict=True) if k is not ctypes.c_float]
        floats = [float(a) for k, a in zip(kinds, arguments, strict=True) if k is ctypes.c_float]
        text = kind is ctypes.c_char_p
        self._send(struct.pack("<2Q", NAMES.index(name), text), *(struct.pack("<Q", w & (1 << 64) - 1) for w in whole))
        self._send(bytes(8 * (INTEGERS - len(whole))), struct.pack(f"<{FLOATS}f", *floats, *[0.0] * (FLOATS - len(floats))))
        self._to.flush()
        self.calls += 1
        while (what := self._number()) != ord("R"):
            address = self._number()
            if what == ord("P"):
                self._send_pages(address)
            else:
                data = self._take(self._number())
                ctypes.memmove(address, data, len(data))
        result = self._number()
        if text:
            return self._take(self._number())
        if kind is None:
            return None
        return kind(result & (1 << 8 * ctypes.sizeof(kind)) - 1).value

    def _send_pages(self, first: int) -> None:
        there = [self._page(first + i * PAGE) for i in range(WINDOW)]
        self._send(bytes(bool(page) for page in there), *there)
        self._to.flush()
        self.pages += sum(map(bool, there))

    def _page(self, address: int) -> bytes:
        """Empty if there is none."""
        try:
            return os.pread(self._memory, PAGE, address)
        except OSError:
            return b""

    def _send(self, *parts: bytes) -> None:
        self._to.write(b"".join(parts))

    def _number(self) -> int:
        return int.from_bytes(self._take(8), "little")

    def _take(self, size: int) -> bytes:
        data = self._from.read(size)
        if len(data) < size:
            self._process.wait()
            raise RuntimeError(f"the other process ended ({self._process.returncode}): what it said is above")
        return data

    def overlaps(self) -> list[str]:
        """Memory that both processes have: there, nothing faults, and calls would go wrong in silence."""
        if self._process.poll() is not None:
            return []
        mine, others = (_ranges(pid) for pid in ("self", str(self._process.pid)))
        return [f"{a:x}-{b:x}" for a, b in mine for c, d in others if a < d and c < b]

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._to.close()
        self._process.wait()


def _whole(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    if isinstance(value, bytes):
        value = ctypes.c_char_p(value)
    return ctypes.cast(value, ctypes.c_void_p).value or 0


def _ranges(process: str) -> list[tuple[int, int]]:
    lines = [line.split() for line in Path(f"/proc/{process}/maps").read_text().splitlines()]
    found = [line[0].split("-") for line in lines if line[-1] != "[vsyscall]"]
    return [(int(a, 16), int(b, 16)) for a, b in found]


def _open() -> Far:
    command = shlex.split(os.environ["THALWEG_DRIVER"])
    for _ in range(5):
        far = Far(command)
        assert far.thalweg_abi() == native.ABI
        if not far.overlaps():
            return far
        far.close()  # the system places memory by chance
    raise RuntimeError("the emulator takes memory where this process has its own")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.collectonly or "THALWEG_DRIVER" not in os.environ:
        return
    far = _open()
    native._load = lambda: far  # type: ignore[assignment,return-value]
    config.stash[KEY] = far
    atexit.register(far.close)


KEY = pytest.StashKey[Far]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = [item for item in items if item.originalname not in APART and item.path.name not in APART]  # type: ignore[attr-defined]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    far = config.stash.get(KEY, None)
    if far:
        terminalreporter.write_line(
            f"{far.calls:,} calls of the other process, {far.pages:,} pages sent, sets {far.thalweg_levels().decode()}"
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    far = session.config.stash.get(KEY, None)
    if far and (both := far.overlaps()):
        raise pytest.UsageError(
            f"memory at {', '.join(both)} belongs to both processes: what the tests said is void, run them again"
        )
