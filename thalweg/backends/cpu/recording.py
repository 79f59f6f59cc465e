"""Decode steps recorded once and replayed: the compiled kernels of a step as one flat list, called from one function.

A step that has equally many new tokens of every sequence (one, or one and its drafts) does the same calls every time. Only
the values in its arrays differ. The second batch of a layout therefore runs under a recorder. Its arrays lie in a buffer that
stays, its results lie in an arena, and every call of a compiled kernel is written down with its addresses. Later batches of
that layout are copied into the buffer, and the list is run: no Python between kernels. Other calls (the token history, biases,
masks: a few per step) are made again as they were, and their results copied to where they lay.

All tapes share one arena, because nothing in it outlives a step. Memory that the recorded step freed is used again by
the recorded step, as it would be when run.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode_temporarily

from thalweg.backends.cpu.native import REPLAYED, WORDS, NativeLibrary, alloc_zeros
from thalweg.backends.cpu.prompts import fill_chunk
from thalweg.backends.cpu.small_ops import CONSTANT, direct_form, numpy_core, numpy_form
from thalweg.backends.eager import CompletedStep, EagerExecutable, copy_arrays, to_numpy, to_torch
from thalweg.backends.tensors import memory_of, tensors_in
from thalweg.hal.comm import SOLO, Communicator, Solo
from thalweg.hal.op import Kernel
from thalweg.hal.step import SCRATCH, Layout, Params, StateBox, Step, StepBatch, appendable, lay_out, pack, statics, unpack

logger = logging.getLogger(__name__)
KEPT = 128
"""Recorded steps kept. The one used longest ago goes first. Some 100 KiB each."""
CHUNK = 4 << 20
"""Bytes by which the arena grows, at least."""
COLUMNS = 8
"""Block tables are widened to powers of two, at least this many blocks, so that growing sequences keep their layout."""
ONCE = "its layout came once"
SLOW = 0.02
"""Seconds of the calling thread. The arithmetic of prompts that take longer hides the Python between their kernels."""
MAKES = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"})


class UnrecordableError(Exception):
    """This step cannot be replayed: why."""


class Arena:
    """Memory for the tensors of a recorded step. `restart` before each recording frees everything."""

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library
        self._chunks: list[ctypes.Array[ctypes.c_char]] = []
        self._free: list[tuple[int, int]] = []
        self._recording = 0

    @property
    def bytes(self) -> int:
        return sum(len(c) for c in self._chunks)

    def restart(self) -> None:
        self._recording += 1
        self._free = sorted((ctypes.addressof(c), len(c)) for c in self._chunks)

    def like(self, t: Tensor) -> Tensor:
        """An uninitialised tensor of this form. Its memory is free again when it and its views are gone."""
        if t.numel() == 0:
            return t
        span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
        size = -(-span * t.element_size() // 64) * 64
        address = self._take(size)
        held = (ctypes.c_char * size).from_address(address)
        weakref.finalize(held, self._give, self._recording, address, size).atexit = False
        return torch.frombuffer(held, dtype=t.dtype, count=span).as_strided(t.shape, t.stride())

    def _take(self, size: int) -> int:
        at = next((i for i, (_, n) in enumerate(self._free) if n >= size), None)
        if at is None:
            chunk = alloc_zeros(self._library, max(CHUNK, size))
            self._chunks.append(chunk)
            self._free.append((ctypes.addressof(chunk), len(chunk)))
            at = len(self._free) - 1
        address, n = self._free.pop(at)
        if n > size:
            self._free.insert(at, (address + size, n - size))
        return address

    def _give(self, recording: int, address: int, size: int) -> None:
        """Neighbours are joined. Blocks of an earlier recording are free since `restart`."""
        if recording != self._recording:
            return
        joined: list[tuple[int, int]] = []
        for start, n in sorted([*self._free, (address, size)]):
            if joined and sum(joined[-1]) == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + n)
            else:
                joined.append((start, n))
        self._free = joined


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs a step and writes it down, as a tape: lists of compiled calls, and Python calls between them."""

    def __init__(self, library: NativeLibrary, arena: Arena) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._library, self._arena = library, arena
        self._parts: list[list[Sequence[int]] | Callable[[], None]] = []
        self.kept: list[Any] = []
        """Objects that must live as long as the tape."""
        self.undone: list[Callable[[], Any]] = []
        """Calls that undo writes, which a second run of the step would see."""

    def note(self, entry: Sequence[int]) -> None:
        if not self._parts or not isinstance(self._parts[-1], list):
            self._parts.append([])
        self._parts[-1].append(entry)  # type: ignore[union-attr]

    def keep(self, what: Any) -> None:
        self.kept.append(what)

    def undo(self, how: Callable[[], Any]) -> None:
        self.undone.append(how)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch keeps its compiler away from a mode's functions. To do so it imports that compiler at the first call,
        a second of the first answer, for a compiler that never sees this. Here it is asked not to."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        if name == "lift_fresh":
            raise UnrecordableError(f"{name} brings a value from Python")
        out = func(*args, **kwargs)
        if name in MAKES:
            return self._arena.like(out)
        if any(not isinstance(t, Tensor) for t in (out if isinstance(out, tuple | list) else (out,))):
            raise UnrecordableError(f"{name} looks at a value")
        return self.call(func, args, kwargs, out, func._schema.is_mutable)

    def call(self, func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], out: Any, writes: bool) -> Any:
        """Note a call that gave `out`, and move new tensors into the arena. A call that made and wrote nothing (a view) is not
        done again: its result stays where it is."""
        if func in CONSTANT:
            self.keep(out)
            return out
        inputs = {memory_of(t) for t in tensors_in((args, kwargs))}
        moved: dict[int, Tensor] = {}
        for i, t in enumerate(tensors_in(out)):
            if memory_of(t) not in inputs:
                moved[i] = self._arena.like(t).copy_(t)
        small = numpy_core(func, args, kwargs, list(moved.items()))
        if small is None and (len(moved) == 1 or (writes and not moved)):
            small = numpy_form(func, args, kwargs, moved.get(0))
        if small is None and 0 in moved:
            small = direct_form(func, args, kwargs, moved[0])
        if small is not None:
            self._parts.append(small)
        elif moved or writes:
            self._parts.append(functools.partial(_again, func, args, kwargs, list(moved.items())))
        return _replace_tensors(out, moved)

    def tape(self) -> Callable[[], None]:
        """A function that runs the step again."""
        parts = [_table(p) if isinstance(p, list) else p for p in self._parts]
        library, replay, context = self._library, self._library.replay, self._library.context

        def run() -> None:
            for part in parts:
                failed = 0
                if not isinstance(part, np.ndarray):
                    part()
                elif library.times is None:
                    failed = replay(context, part.ctypes.data, len(part))
                else:
                    for entry in part:
                        with library.clock(library.times, REPLAYED[int(entry[0])], int(entry[1])):
                            failed = failed or replay(context, entry.ctypes.data, 1)
                if failed and library.describe_failure is not None:
                    raise library.describe_failure(failed)

        return run


def _table(entries: Sequence[Sequence[int]]) -> np.ndarray:
    return np.array([[*e, *[0] * (WORDS - len(e))] for e in entries], np.int64)


def _again(func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], targets: list[tuple[int, Tensor]]) -> None:
    if not targets:
        func(*args, **kwargs)
        return
    got = list(tensors_in(func(*args, **kwargs)))
    for i, target in targets:
        target.copy_(got[i])


def opaque(kernel: Kernel, library: NativeLibrary) -> Kernel:
    """A kernel that decides by values (which rows draw, how far to look): recorded as one call, whatever it does inside.
    The shapes of its results must follow from those of its arguments."""

    @functools.wraps(kernel.run)
    def run(*args: Any, **static: Any) -> Any:
        if library.tape is None:
            return kernel.run(*args, **static)
        with _pop_mode_temporarily():
            out = kernel.run(*args, **static)
            return library.tape.call(kernel.run, args, static, out, True)

    return replace(kernel, run=run)


def advancing(kernel: Kernel, library: NativeLibrary, held: int) -> Kernel:
    """A kernel that reads a sequence's state and writes the next over it: done twice it would advance twice. Where a recording
    fails, the overwritten state is therefore put back, and the step is run again. held: the index of the cache argument. The
    block table follows it."""

    @functools.wraps(kernel.run)
    def run(*args: Any, **static: Any) -> Any:
        if library.tape is not None:
            with _pop_mode_temporarily():
                cache, blocks = args[held], args[held + 1][:, 1].long()
                library.tape.undo(functools.partial(cache.index_copy_, 0, blocks, cache[blocks]))
        return kernel.run(*args, **static)

    return replace(kernel, run=run)


@dataclass(slots=True)
class _RecordedStep:
    places: list[np.ndarray]
    """Where each array of the batch must lie, in the order of `StepBatch.arrays`."""
    run: Callable[[], None]
    result: Any
    """The step's result, of arrays that the tape fills."""
    held: Any
    """Owners of addresses that the tape holds: tensors over the buffer, jobs."""


class RecordingExecutable:
    """Uniform steps are recorded when a layout comes a second time, and so are short prompts of one sequence (`prompts`).
    Others run as they are written."""

    def __init__(
        self, step: Step, params: Params, state: StateBox, library: NativeLibrary, arena: Arena, comm: Communicator = SOLO
    ) -> None:
        """comm: what the step exchanges with other ranks through."""
        self._eager, self._comm = EagerExecutable(step, params, state), comm
        self._step, self._params, self._state, self._library, self._arena = step, params, state, library, arena
        self._fills = appendable(step) if isinstance(comm, Solo) else 0  # ranks would decide by clocks of their own
        """Longest sequence with prompts that may be filled up. 0: none may."""
        self._tapes: OrderedDict[Any, _RecordedStep | str] = OrderedDict()
        """Recorded steps by layout and statics. A text says why there is no tape."""

    def __call__(self, batch: StepBatch) -> CompletedStep:
        if not len(batch.slots) or (batch.slots == SCRATCH).any():
            return self._as_written(batch)
        given, began = batch, 0.0
        if not batch.uniform:
            filled = fill_chunk(batch, self._fills) if self._fills else None
            if filled is None:
                return self._as_written(batch)
            batch, began = filled, time.thread_time()
        wide = replace(batch, block_tables=tuple(_pad_columns(t) for t in batch.block_tables))
        arrays = wide.arrays()
        layout, size = lay_out(wide, arrays)
        key = (layout, statics(wide))
        tape = self._tapes.get(key)
        if tape is None:
            done = self._as_written(given)
            if not began or time.thread_time() - began < SLOW:
                self._tapes[key] = ONCE
            if len(self._tapes) > KEPT:
                self._tapes.popitem(last=False)
            return done
        self._tapes.move_to_end(key)
        try:
            if isinstance(tape, _RecordedStep):
                return self._replay(tape, arrays)
            if tape == ONCE:
                return self._record(key, wide, layout, size)
        except UnrecordableError as e:
            self._tapes[key] = str(e)
            logger.debug("a step is not recorded: %s", e)
        except Exception as e:
            if isinstance(tape, _RecordedStep):
                return CompletedStep(None, e)
            del self._tapes[key]
        return self._as_written(given)  # every write of an abandoned step is the same when done again

    def forget(self) -> None:
        """Drop all tapes: they hold the address of a group that has ended."""
        self._tapes.clear()

    def _as_written(self, batch: StepBatch) -> CompletedStep:
        """Tapes hold addresses of the state: they end with its memory."""
        before = self._state.value
        done = self._eager(batch)
        if self._state.value is not before and not _in_place(before, self._state.value):
            self._tapes.clear()
        return done

    def _replay(self, tape: _RecordedStep, arrays: list[tuple[str, Any]]) -> CompletedStep:
        for place, (_, array) in zip(tape.places, arrays, strict=True):
            place[...] = array
        with torch.inference_mode():
            tape.run()
        return CompletedStep(copy_arrays(tape.result))

    def _record(self, key: Any, batch: StepBatch, layout: Layout, size: int) -> CompletedStep:
        if not self._comm.captures:
            raise UnrecordableError(f"{type(self._comm).__name__} exchanges with other ranks, unseen by the recorder")
        held = alloc_zeros(self._library, size)
        buffer = torch.frombuffer(held, dtype=torch.uint8).numpy()
        pack(batch, layout, buffer)
        places = [buffer[at : at + _bytes(kind, shape)].view(kind).reshape(shape) for _, kind, shape, at in layout]
        laid = unpack(batch, {name: to_torch(place) for (name, *_), place in zip(layout, places, strict=True)})
        self._arena.restart()
        recorder = Recorder(self._library, self._arena)
        self._library.tape = recorder
        try:
            with torch.inference_mode(), recorder:
                state, result = self._step(self._params, self._state.value, laid)
            if not _in_place(self._state.value, state):
                raise UnrecordableError("the step returned a state in other memory")
        except BaseException:
            with torch.inference_mode():
                for undo in reversed(recorder.undone):
                    undo()
            raise
        finally:
            self._library.tape = None
        tape = _RecordedStep(places, recorder.tape(), to_numpy(result), (laid, result, recorder.kept))
        self._tapes[key] = tape
        return CompletedStep(copy_arrays(tape.result))


def _pad_columns(table: np.ndarray) -> np.ndarray:
    columns = max(COLUMNS, 1 << (table.shape[1] - 1).bit_length())
    out = np.full((table.shape[0], columns), SCRATCH, table.dtype)
    out[:, : table.shape[1]] = table
    return out


def _bytes(kind: str, shape: tuple[int, ...]) -> int:
    return int(np.prod(shape)) * np.dtype(kind).itemsize


def _replace_tensors(out: Any, moved: Mapping[int, Tensor]) -> Any:
    """`out`, a tensor or a flat sequence of tensors, with some in other memory."""
    if isinstance(out, Tensor):
        return moved.get(0, out)
    return type(out)(moved.get(i, t) for i, t in enumerate(out))


def _in_place(old: Any, new: Any) -> bool:
    before, after = list(tensors_in(old)), list(tensors_in(new))
    return len(before) == len(after) and all(a.data_ptr() == b.data_ptr() for a, b in zip(before, after, strict=True))
