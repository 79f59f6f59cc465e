"""Ops, kernels, and the binder that joins them once, when a layer is built.

An op is defined by its reference body (in `hal.ops`): that body is the meaning. A kernel is a faster way to the same
result on one device. `Binder.bind` asks each kernel of the device, in order, whether it supports the use. It records
every refusal with its reason, and hands back a plain callable. Nothing is looked up again while serving.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from thalweg.hal.weights import QTensor, WeightFormat

NOT_INVARIANT = "its rows depend on what else is in the batch"


class StrictKernelError(RuntimeError):
    """--strict-kernels is on and an op would have run its reference body."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One generated case for tests and benchmarks: `make(rng) -> args` (numpy arrays) and the static arguments."""

    name: str
    make: Callable[[Any], Sequence[Any]]
    static: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Op:
    """A named operation. Positional arguments of `reference` are arrays. Keyword-only ones are static, fixed at bind."""

    name: str
    reference: Callable[..., Any]
    samples: tuple[Sample, ...] = ()
    tolerances: Mapping[str, float] = field(default_factory=dict)
    """Largest difference from the reference body per dtype name, relative to the largest magnitude. Absent = exact."""
    batch_invariant: bool = True
    """Claim of the reference body, as `Kernel.batch_invariant`."""

    @property
    def static(self) -> tuple[str, ...]:
        """Names of the static arguments."""
        return tuple(p.name for p in _static_of(self.reference))

    def __call__(self, *args: Any, **static: Any) -> Any:
        return self.reference(*args, **static)


@functools.lru_cache(maxsize=256)
def _static_of(body: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """Keyword-only parameters. Remembered: a model of many layers binds the same few ops hundreds of times."""
    return tuple(p for p in inspect.signature(body).parameters.values() if p.kind is p.KEYWORD_ONLY)


def op(*, samples: Iterable[Sample] = (), tolerances: Mapping[str, float] | None = None) -> Callable[[Callable[..., Any]], Op]:
    """Decorator: the function becomes the reference body of an op of the same name."""

    def wrap(f: Callable[..., Any]) -> Op:
        result = Op(f.__name__, f, tuple(samples), dict(tolerances or {}))
        return result

    return wrap


def _yes(spec: Mapping[str, Any]) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Pack:
    """How a kernel packs a weight: called once, at load, with the weight in canonical form. `run` gets the result as the
    weight. Ops with one stored tensor and equal packs share one result."""

    make: Callable[[QTensor], Any]
    mapped: Callable[[Sequence[np.ndarray], WeightFormat], Any] | None = None
    """The same for a dense weight in several host arrays, their rows in sequence (numpy, bfloat16 as uint16). It is first
    rounded to the format given, as by `hal.ops.quantise`. The arrays may be views of a mapped file, so no reference to them may
    be kept. None, or where it gives None: `make` serves."""
    blocks: Callable[[Sequence[np.ndarray], str, int, WeightFormat], Any] | None = None
    """The same for blocks of codes, scales and minimums as in a GGUF file, uint8 [rows, bytes], of the type named and so many
    inputs, for kernels that unpack them themselves. Likewise None, or gives None, where `make` serves."""
    keeps_dense: bool = False
    """A dense weight stays where it is put, and may be read straight into the device's memory (`Device.blank`)."""
    at_rest: bool = False
    """Codes may come as `hal.ops.quantise.at_rest` keeps them."""

    def __call__(self, w: QTensor) -> Any:
        return self.make(w)


def _plain(w: QTensor) -> Any:
    if w.format.kind != "dense":
        raise ValueError(f"a kernel without its own pack runs dense weights, not {w.format}")
    return w.data["weight"]


def _as_it_is(w: QTensor) -> Any:
    return w.data["weight"] if w.format.kind == "dense" else dict(w.data)


PLAIN = Pack(_plain, keeps_dense=True)
"""Pack of a kernel that runs a dense weight as it is."""
OF_BODIES = Pack(_as_it_is, keeps_dense=True, at_rest=True)
"""Pack of reference bodies: a weight's data."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One way to run one op on one device.

    run: called as the reference body is: arrays by position, static arguments by name (fixed at bind).
    supports: given the bind-time spec, None or the reason it cannot.
    pack: how it packs a weight, for ops that have one.
    gains: asked where an alternative may serve this use (`Binder.offer`, a choice among formats): None, or why the alternative
    is faster.
    batch_invariant: a row's result is the same bits whatever else is in the batch.
    """

    op: str
    name: str
    run: Callable[..., Any]
    supports: Callable[[Mapping[str, Any]], str | None] = _yes
    pack: Pack = PLAIN
    batch_invariant: bool = False
    gains: Callable[[Mapping[str, Any]], str | None] = _yes


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """One line of the kernel plan."""

    op: str
    spec: Mapping[str, Any]
    kernel: str
    batch_invariant: bool
    refused: tuple[tuple[str, str], ...]
    """(kernel, why not), in order of preference."""

    def __str__(self) -> str:
        spec = " ".join(f"{k}={v}" for k, v in sorted(self.spec.items()))
        why = "".join(f"; not {k}: {r}" for k, r in self.refused)
        return f"{self.op}({spec}) -> {self.kernel}{' [batch-invariant]' if self.batch_invariant else ''}{why}"


@dataclass(frozen=True, slots=True)
class BoundOp:
    """A bound op: call it. `pack` prepares this kernel's weight, for ops that take one."""

    call: Callable[..., Any]
    pack: Pack
    choice: KernelChoice

    def __call__(self, *args: Any) -> Any:
        return self.call(*args)


class Binder:
    """Chooses kernels for one device and remembers every choice: `plan` is the kernel plan, one entry per distinct use."""

    def __init__(
        self, kernels: Sequence[Kernel], strict: bool = False, batch_invariant: bool = False, bodies_invariant: bool = True
    ) -> None:
        """strict: a fallback to a reference body is an error. batch_invariant: other kernels are refused. bodies_invariant: as
        in `Device.bodies_invariant`."""
        self.batch_invariant = batch_invariant
        self._bodies_invariant = bodies_invariant
        self._kernels: dict[str, list[Kernel]] = {}
        for k in kernels:
            self._kernels.setdefault(k.op, []).append(k)
        self._strict = strict
        self._bindings: dict[tuple[Any, ...], KernelChoice] = {}

    def of(self, kernels: Sequence[Kernel]) -> Binder:
        """The same for other kernels, with one plan for both."""
        other = Binder(kernels, self._strict, self.batch_invariant, self._bodies_invariant)
        other._bindings = self._bindings
        return other

    @property
    def bindings(self) -> list[KernelChoice]:
        return list(self._bindings.values())

    def record(self, choice: KernelChoice) -> None:
        """Add a choice made elsewhere (an attention backend) to the plan."""
        self._bindings.setdefault((choice.op, repr(sorted(choice.spec.items()))), choice)

    def bind(self, op: Op, **spec: Any) -> BoundOp:
        """The callable for this use. `spec` holds the op's static arguments and any spec kernels decide by
        (dtype, sizes, weight format). Raises StrictKernelError when strict and only the reference body is left,
        unless the device offers no kernel for the op at all on purpose (an empty kernel list: the reference backend)."""
        static = {k: spec[k] for k in op.static if k in spec}
        missing = [p.name for p in _static_of(op.reference) if p.default is p.empty and p.name not in spec]
        if missing:
            raise TypeError(f"bind({op.name}): static arguments {missing} not given")
        kernel, refused = self._choose(op, spec)
        if kernel is not None:
            return self._build(op, spec, kernel, static, refused)
        if self._strict and self._kernels:
            reasons = "; ".join(f"{k}: {r}" for k, r in refused) or "the device has no kernel for it"
            raise StrictKernelError(f"{op.name} would fall back to its reference body ({reasons})")
        invariant = op.batch_invariant and self._bodies_invariant
        body = Kernel(op.name, "reference", op.reference, pack=OF_BODIES, batch_invariant=invariant)
        return self._build(op, spec, body, static, refused)

    def offer(self, op: Op, partner: BoundOp | None = None, /, **spec: Any) -> BoundOp | None:
        """`bind`, of an op with alternatives: None where the device has no kernel for this use, or an alternative is faster.
        partner: an op bound before, to share its packed weight. Kernels of another `Pack` are refused."""
        kernel, refused = self._choose(op, spec, partner)
        if kernel is None or kernel.gains(spec) is not None:
            return None
        return self._build(op, spec, kernel, {k: spec[k] for k in op.static if k in spec}, refused)

    def gains(self, op: Op, **spec: Any) -> bool:
        """Has the device a kernel for this use worth choosing over the alternatives? Nothing is bound."""
        kernel, _ = self._choose(op, spec)
        return kernel is not None and kernel.gains(spec) is None

    def _choose(
        self, op: Op, spec: Mapping[str, Any], partner: BoundOp | None = None
    ) -> tuple[Kernel | None, list[tuple[str, str]]]:
        """The first kernel that supports this use, and the reasons of those before it."""
        refused: list[tuple[str, str]] = []
        for k in self._kernels.get(op.name, ()):
            why = k.supports(spec)
            if why is None and self.batch_invariant and not k.batch_invariant:
                why = NOT_INVARIANT
            if why is None and partner is not None and k.pack != partner.pack:
                why = f"packs its weight otherwise than {partner.choice.kernel}, with which it would share it"
            if why is None:
                return k, refused
            refused.append((k.name, why))
        return None, refused

    def _build(
        self, op: Op, spec: Mapping[str, Any], k: Kernel, static: Mapping[str, Any], refused: list[tuple[str, str]]
    ) -> BoundOp:
        choice = KernelChoice(op.name, dict(spec), k.name, k.batch_invariant, tuple(refused))
        self.record(choice)
        return BoundOp(functools.partial(k.run, **static) if static else k.run, k.pack, choice)
