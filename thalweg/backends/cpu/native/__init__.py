"""The compiled kernels of the CPU platform: finding the library, opening it, and the arguments of its functions.

The library (src/, C++ without any framework) has a plain C interface, called through ctypes with addresses. It is
compiled when the package is installed (hatch_build.py at the root). Importing this loads nothing. `open_library`
does, and says why not.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from thalweg.hal.times import Times
from thalweg.hal.weights import WeightFormat

if TYPE_CHECKING:
    from thalweg.backends.cpu.native.weight_cache import PackedWeightCache

ABI = 37
"""Of the interface; a library left over from another version is refused."""
LIBRARY = Path(__file__).parent / "libthalweg_cpu.so"
NONE = "none"
"""The instruction set that means: no compiled kernels."""
PORTABLE = "portable"
"""The instruction set that every processor has."""

_P, _I, _L, _F = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
_SIGNATURES: dict[str, tuple[Any, Sequence[Any]]] = {
    "thalweg_abi": (_I, ()),
    "thalweg_levels": (ctypes.c_char_p, ()),
    "thalweg_open": (_P, (_I, ctypes.c_char_p)),
    "thalweg_close": (None, (_P,)),
    "thalweg_level": (ctypes.c_char_p, (_P,)),
    "thalweg_peak": (_L, (_P, _I, _L)),
    "thalweg_read": (_L, (_P, _P, _L)),
    "thalweg_take": (_P, (ctypes.c_size_t,)),
    "thalweg_give": (None, (_P, ctypes.c_size_t)),
    "thalweg_populate": (None, (_P, ctypes.c_size_t)),
    "thalweg_expect": (None, (ctypes.c_size_t,)),
    "thalweg_waiting": (_L, ()),
    "thalweg_settle": (None, ()),
    "thalweg_pack": (_P, (_P, _I, _I, _P, _P, _L, _L, _L, _P, _P, _P, _I, _P, _P, _I, _F)),
    "thalweg_pack_blocks": (_P, (_P, _I, _I, _P, _P, _L, _L)),
    "thalweg_quads": (_I, (_P, _I, _L, _L)),
    "thalweg_compress": (_I, (_P,)),
    "thalweg_adopt": (_P, (_P, _I, _I, _L, _L, _L, _I, _I, _P, _L)),
    "thalweg_memory": (_P, (_P,)),
    "thalweg_digest": (None, (_P, _P, _L, _P)),
    "thalweg_free": (None, (_P,)),
    "thalweg_bytes": (_L, (_P,)),
    "thalweg_attend": (None, (_P, _P)),
    "thalweg_norm": (None, (_P, _I, _P, _L, _L, _L, _L, _P, _P, _F, _F, _P, _P)),
    "thalweg_gated_norm": (None, (_P, _I, _P, _P, _L, _L, _P, _F, _P)),
    "thalweg_group_norm": (None, (_P, _I, _P, _P, _L, _L, _L, _L, _P, _F, _I, _P)),
    "thalweg_gate": (None, (_P, _I, _P, _L, _L, _I, _F, _F, _P)),
    "thalweg_turn": (None, (_P, _I, _P, _P, _L, _L, _L, _L, _L, _L, _P, _P, _L, _I, _P, _P)),
    "thalweg_delta": (None, (_P, _P)),
    "thalweg_conv": (None, (_P, _P)),
    "thalweg_ssd": (None, (_P, _P)),
    "thalweg_scan": (None, (_P, _P)),
    "thalweg_best": (None, (_P, _P, _L, _L, _P)),
    "thalweg_linear": (None, (_P, _P, _I, _P, _L, _P, _P)),
    "thalweg_largest": (None, (_P, _P, _I, _P, _L, _P, _P, _P, _P)),
    "thalweg_gather": (None, (_P, _P, _I, _P, _L, _P)),
    "thalweg_draw": (None, (_P, _P, _L, _L, _P, _I, _P, _P, _P, _P, _P, _P, _P, _P)),
    "thalweg_logprobs": (None, (_P, _P, _P, _L, _L, _L, _I, _P, _P, _P)),
    "thalweg_penalties": (None, (_P, _P, _L, _L, _P, _L, _P, _P, _P, _P, _P, _P, _P)),
    "thalweg_experts": (None, (_P, _P, _P, _L, _L, _I, _F, _F, _I, _P, _L, _P, _P, _L, _P, _P)),
    "thalweg_route": (None, (_P, _P, _P, _L, _L, _L, _I, _I, _F, _L, _L, _L, _P, _P)),
    "thalweg_heads": (None, (_P, _P, _L, _L, _I, _P, _L, _L, _L, _P)),
    "thalweg_lora_rows": (None, (_P, _P, _P, _P, _L, _L, _P, _P, _P)),
    "thalweg_lora_add": (None, (_P, _I, _P, _P, _L, _L, _P, _P, _L, _P, _P, _P, _P, _L, _L)),
    "thalweg_lora_rescale": (None, (_P, _I, _P, _P, _P, _L, _L)),
    "thalweg_lora_experts": (
        None,
        (_P, _P, _P, _L, _L, _I, _F, _F, _I, _P, _L, _P, _P, _L, _P, _P, _P, _P, _P, _P, _P, _L),
    ),
    "thalweg_layer_norm": (None, (_P, _I, _P, _L, _L, _P, _P, _F, _F, _P)),
    "thalweg_sigmoid_gate": (None, (_P, _I, _P, _L, _L, _L, _L, _P, _L, _L, _P)),
    **{f"thalweg_{name}": (None, (_P, _P)) for name in ("decays", "read_chosen", "choose", "pool", "hyper")},
    "thalweg_ranks_bytes": (_L, (_I, _L)),
    "thalweg_ranks_open": (_P, (_I, _I, _I, _L, _P)),
    "thalweg_ranks_number": (_L, (_P,)),
    "thalweg_ranks_abort": (None, (_P,)),
    "thalweg_ranks_close": (None, (_P,)),
    "thalweg_all_reduce": (_I, (_P, _P, _I, _P, _L, _P)),
    "thalweg_all_gather": (_I, (_P, _P, _P, _L, _L, _P)),
    "thalweg_replay": (_I, (_P, _P, _L)),
}
REPLAYED = (
    "linear", "attend", "norm", "gate", "turn", "best", "largest", "gather", "draw", "logprobs", "penalties", "experts",
    "route", "gated_norm", "heads", "group_norm", "all_reduce", "all_gather", "lora_rows", "lora_add",
    "lora_rescale", "lora_experts", "layer_norm", "sigmoid_gate", "decays", "read_chosen", "choose", "pool", "hyper",
    "delta", "conv", "scan",
)  # fmt: skip
"""Functions that make up a step, which `thalweg_replay` calls again from a list. They are numbered as there."""
OPAQUE = ("ssd",)
"""More functions that make up a step. They are called within calls that are recorded as a whole."""
WEIGHTED = ("linear", "largest", "heads")
"""Functions with a packed weight as the first argument."""
WORDS = 22
"""Words of 64 bits in an entry of that list: the function's number, and its arguments after the context."""
QUADS = ("avx512vnni", "avxvnni")
"""Instruction sets with products that read integer codes in quads, for inputs of any kind."""


class NoLibraryError(Exception):
    """There are no compiled kernels here: why, in words that fit after a colon."""


class Tape(Protocol):
    """Where the calls of a step are written down (cpu/recording.py)."""

    def note(self, entry: Sequence[int]) -> None:
        """A call that was made, as an entry of `thalweg_replay`'s list."""

    def keep(self, what: Any) -> None:
        """An object with an address that was passed lives as long as the tape."""

    def undo(self, how: Callable[[], Any]) -> None:
        """How to undo a call's writes, if the step has to be run again."""

    def call(self, func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], out: Any, writes: bool) -> Any:
        """Note a call of another function that was made, and gave `out`. Returns the result to continue with."""


@dataclass(slots=True, weakref_slot=True)
class NativeLibrary:
    """An open library: its functions by name, and the context (threads, chosen instruction set) they take first."""

    functions: ctypes.CDLL
    context: int
    level: str
    threads: int
    tape: Tape | None = None
    """The recorder, while a step is recorded."""
    times: Times | None = None
    """While it is measured where time goes."""
    kept: PackedWeightCache | None = None
    """Where packed weights are kept, if they are."""
    compresses: bool = False
    """Are dense weights of bfloat16 packed without loss in about 12 bits each, where they can be?"""
    describe_failure: Callable[[int], Exception] | None = None
    """What to raise where a replayed exchange with other ranks failed. A communicator sets it."""
    shapes: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Outputs and inputs of packed weights, by handle."""

    def compress_weights(self) -> bool:
        """Pack dense weights so from now on. False: no kernel here reads them, and they stay as they are."""
        self.compresses = bool(self.compress(self.context))
        return self.compresses

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self.functions, f"thalweg_{name}")
        if name in REPLAYED:
            return self._record_calls(name, function)
        return self._time_calls(name, function) if name in OPAQUE else function

    def _record_calls(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        number, kinds, run = REPLAYED.index(name), _SIGNATURES[f"thalweg_{name}"][1][1:], self._time_calls(name, function)

        def call(context: int, *arguments: Any) -> Any:
            result = run(context, *arguments)
            if self.tape is not None:
                self.tape.note([number, *map(_word, kinds, arguments)])
            return result

        return call

    def _time_calls(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(context: int, *arguments: Any) -> Any:
            if self.times is None:
                return function(context, *arguments)
            with self.clock(self.times, name, arguments[0]):
                return function(context, *arguments)

        return call

    @contextlib.contextmanager
    def clock(self, times: Times, name: str, first: int) -> Iterator[None]:
        """Counts the time until exit as time of this function. first: its first argument."""
        begun = time.perf_counter()
        yield
        shape = self.shapes.get(first) if name in WEIGHTED else None
        times.add(f"{name} {shape[1]} -> {shape[0]}" if shape else name, time.perf_counter() - begun)


def _word(kind: Any, value: Any) -> int:
    """An argument as 64 bits: a float32 as its own 32."""
    if kind is _F:
        return int.from_bytes(struct.pack("<f", value), "little")
    return value or 0


def levels() -> list[str]:
    """Instruction sets that the library holds and this processor has, best first. NoLibraryError."""
    text: bytes = _load().thalweg_levels()
    return text.decode().split(",")


def of_rows(format: WeightFormat) -> bool:
    """Can rows be read out of a packed matrix with these codes, where no product reads them in quads?"""
    plain = not (format.act or format.scale_dtype or format.reordered or format.smoothed)
    return plain and format.kind == "int" and format.bits in (4, 8) and (format.group % 2 == 0 or format.group == -1)


def open_library(threads: int, level: str = "") -> NativeLibrary:
    """level: one of `levels()`, "" the best, "none" no library. The context ends with the last reference to the
    result. NoLibraryError. ValueError for a missing level."""
    if level == NONE:
        raise NoLibraryError("turned off by isa=none")
    dll = _load()
    context = dll.thalweg_open(threads, level.encode())
    if not context:
        raise ValueError(f"isa: {level!r} is not there; this processor and library have {', '.join(levels())}, none")
    result = NativeLibrary(dll, context, dll.thalweg_level(context).decode(), threads)
    weakref.finalize(result, dll.thalweg_close, context)
    return result


def alloc_zeros(library: NativeLibrary, size: int) -> ctypes.Array[ctypes.c_char]:
    """Zeroed bytes on huge pages where the system has them. They cost memory where they are written, and are given
    back with the last reference."""
    address = library.take(size)
    if not address:
        raise MemoryError(f"no memory for {size:,} bytes")
    result = (ctypes.c_char * size).from_address(address)
    weakref.finalize(result, library.give, address, size)
    return result


def expect(size: int) -> None:
    """Begin to make memory ready, on a thread of the library: about so many bytes will be packed soon. `settle` returns the
    unused rest. Nothing where there is no library."""
    with contextlib.suppress(NoLibraryError):
        _load().thalweg_expect(size)


def waiting() -> int:
    """Bytes that this process holds ready and that nothing uses yet: as good as free."""
    try:
        return int(_load().thalweg_waiting())
    except NoLibraryError:
        return 0


def settle() -> None:
    """Everything expected has come, or will not."""
    with contextlib.suppress(NoLibraryError):
        _load().thalweg_settle()


def begin() -> None:
    """Load the library, if there is one."""
    with contextlib.suppress(NoLibraryError):
        _load()


def _load() -> ctypes.CDLL:
    try:
        file = LIBRARY.stat()
    except OSError:
        raise NoLibraryError(
            "the package was installed without a C++ compiler; install one and reinstall, or run hatch_build.py"
        ) from None
    return _load_library(LIBRARY, ABI, file.st_ino, file.st_mtime_ns)


@functools.cache
def _load_library(path: Path, abi: int, *file: int) -> ctypes.CDLL:
    """Each file once: the system's loader opens one library at a time, and torch's may occupy it for a while."""
    try:
        dll = ctypes.CDLL(str(path))
        found = dll.thalweg_abi()
    except (OSError, AttributeError) as e:
        raise NoLibraryError(f"{path.name} does not load: {e}") from None
    if found != abi:
        raise NoLibraryError(
            f"{path.name} is of another version (interface {found}, not {abi}); reinstall, or run hatch_build.py"
        )
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(dll, name)
        function.restype, function.argtypes = result, list(arguments)
    return dll
