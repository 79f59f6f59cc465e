"""Small torch operations of recorded steps as numpy calls. A call of torch and the copy of its result cost about ten times as
much: they allocate, dispatch and count references.

A form writes into the memory of its result. It is used where it gives the same bits: integers, comparisons, and moves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Call = Callable[[], Any]
aten = torch.ops.aten
CONSTANT = frozenset(
    {aten.arange.default, aten.arange.start, aten.arange.start_step, aten.ones_like.default, aten.zeros_like.default}
)
"""Their results depend on no value."""
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def numpy_form(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor | None) -> Call | None:
    """A call that does the same as `func(*args, **kwargs)` into `out`. None: there is none with the same bits. out: memory of
    the result, of its shape and dtype. None: `func` writes to its first argument."""
    form = _FORMS.get(func)
    if form is None or kwargs.get("alpha", 1) != 1 or not set(kwargs) <= {"alpha", "dtype"}:
        return None
    result: Call | None = form(out, *args)
    return result


def direct_form(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> Call | None:
    """The same kernel of torch as `func(*args, **kwargs)`, which writes to `out`: no new tensor, and no copy. None: it has no
    such form."""
    if func in _CONVERSIONS:
        return functools.partial(out.copy_, args[0])
    run = _DIRECT.get(func)
    return None if run is None else functools.partial(run, *args, **kwargs, out=out)


def numpy_core(func: Any, args: Sequence[Any], static: Mapping[str, Any], outs: Sequence[tuple[int, Tensor]]) -> Call | None:
    """The same for a kernel with a `core` of arrays, which returns one or a tuple. outs: (place in that tuple, memory)."""
    core = getattr(func, "core", None)
    if core is None:
        return None
    run = functools.partial(core, *(a.numpy() for a in args), **static)
    return functools.partial(_fill, run, [(i, t.numpy()) for i, t in outs]) if outs else run


def _fill(run: Call, outs: Sequence[tuple[int, np.ndarray]]) -> None:
    found = run()
    for i, out in outs:
        np.copyto(out, found[i] if isinstance(found, tuple) else found)


def _whole(*values: Any) -> bool:
    return all(not v.is_floating_point() if isinstance(v, Tensor) else isinstance(v, int) for v in values)


def _number(value: Any) -> Any:
    return value.numpy() if isinstance(value, Tensor) else value


def _bits(t: Tensor) -> np.ndarray:
    """The memory of t, for moves: numpy has no bfloat16."""
    kind: Any = _BITS[t.element_size()]
    found: np.ndarray = t.view(getattr(torch, kind.__name__)).numpy() if t.dtype != torch.bool else t.numpy().view(kind)
    return found


def _whole_ufunc(ufunc: Any) -> Any:
    def form(out: Tensor, *args: Any) -> Call | None:
        if len(args) != ufunc.nin or not _whole(out, *args):
            return None
        return functools.partial(ufunc, *map(_number, args), out=out.numpy())

    return form


def _comparison(ufunc: Any) -> Any:
    def form(out: Tensor, a: Tensor, b: Any) -> Call | None:
        if any(isinstance(v, Tensor) and v.dtype in (torch.bfloat16, torch.float16) for v in (a, b)):
            return None
        return functools.partial(ufunc, a.numpy(), _number(b), out=out.numpy())

    return form


def _clamp(out: Tensor, a: Tensor, low: Any = None, high: Any = None) -> Call | None:
    if not _whole(a, *(v for v in (low, high) if v is not None)) or (low is None) == (high is None):
        return None
    ufunc, bound = (np.maximum, low) if high is None else (np.minimum, high)
    return functools.partial(ufunc, a.numpy(), bound, out=out.numpy())


def _not(out: Tensor, a: Tensor) -> Call | None:
    return functools.partial(np.logical_not, a.numpy(), out=out.numpy()) if a.dtype == torch.bool else None


def _select(out: Tensor, a: Tensor, axis: int, index: Tensor) -> Call | None:
    if axis != 0 or a.dtype != out.dtype:
        return None
    return functools.partial(_bits(a).take, index.numpy(), 0, _bits(out), "wrap")


def _index(out: Tensor, a: Tensor, indices: Sequence[Tensor | None]) -> Call | None:
    if len(indices) != 1 or indices[0] is None or indices[0].dtype not in (torch.int32, torch.int64):
        return None
    return _select(out, a, 0, indices[0])


def _index_copy(out: None, a: Tensor, axis: int, index: Tensor, source: Tensor) -> Call | None:
    if axis != 0 or a.dtype != source.dtype:
        return None
    return functools.partial(_bits(a).__setitem__, index.numpy(), _bits(source))


def _convert(out: Tensor, a: Tensor, *_: Any) -> Call | None:
    if not _whole(out, a):
        return None
    return functools.partial(np.copyto, out.numpy(), a.numpy(), casting="unsafe")


def _cat(out: Tensor, parts: Sequence[Tensor], axis: int = 0) -> Call | None:
    lengths = [p.shape[axis] for p in parts]
    return _moves([out.narrow(axis, sum(lengths[:i]), n) for i, n in enumerate(lengths)], parts)


def _stack(out: Tensor, parts: Sequence[Tensor], axis: int = 0) -> Call | None:
    return _moves(out.unbind(axis), parts)


def _pad(out: Tensor, a: Tensor, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Call | None:
    if mode != "constant" or value or len(pad) != 2 or pad[0] or pad[1] < 0:
        return None
    there, rest = _bits(out[..., : a.shape[-1]]), _bits(out[..., a.shape[-1] :])
    return functools.partial(_run, ((there, _bits(a)), (rest, np.zeros((), rest.dtype))))


def _moves(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> Call | None:
    if any(t.dtype != s.dtype or t.shape != s.shape for t, s in zip(targets, sources, strict=True)):
        return None
    return functools.partial(_run, tuple((_bits(t), _bits(s)) for t, s in zip(targets, sources, strict=True)))


def _run(moves: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    for target, source in moves:
        np.copyto(target, source)


def _where(out: Tensor, condition: Tensor, a: Any, b: Any) -> Call | None:
    if condition.dtype != torch.bool:
        return None
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == b.dtype == out.dtype:
        return functools.partial(_choose, _bits(out), condition.numpy(), _bits(a), _bits(b))
    if not _whole(out, a, b):
        return None
    return functools.partial(_choose, out.numpy(), condition.numpy(), _number(a), _number(b))


def _choose(out: np.ndarray, condition: np.ndarray, a: Any, b: Any) -> None:
    np.copyto(out, b)
    np.copyto(out, a, where=condition)


def _sum(out: Tensor, a: Tensor, axes: Sequence[int] | None, keepdim: bool = False) -> Call | None:
    if not _whole(out, a) or keepdim or axes is None or len(axes) != 1:
        return None
    return functools.partial(np.add.reduce, a.numpy(), axis=axes[0], dtype=out.numpy().dtype, out=out.numpy())


_FORMS: dict[Any, Callable[..., Call | None]] = {
    aten.add.Tensor: _whole_ufunc(np.add), aten.sub.Tensor: _whole_ufunc(np.subtract),
    aten.minimum.default: _whole_ufunc(np.minimum), aten.maximum.default: _whole_ufunc(np.maximum),
    aten.clamp.default: _clamp, aten.bitwise_not.default: _not,
    aten.eq.Tensor: _comparison(np.equal), aten.lt.Scalar: _comparison(np.less), aten.ge.Scalar: _comparison(np.greater_equal),
    aten.index_select.default: _select, aten.index.Tensor: _index, aten.index_copy_.default: _index_copy,
    aten.to.dtype: _convert, aten._to_copy.default: _convert, aten.cat.default: _cat, aten.stack.default: _stack,
    aten.pad.default: _pad, aten.constant_pad_nd.default: _pad, aten.where.self: _where, aten.where.ScalarOther: _where,
    aten.sum.dim_IntList: _sum,
}  # fmt: skip
_CONVERSIONS = (aten.to.dtype, aten._to_copy.default)
_DIRECT: dict[Any, Callable[..., Tensor]] = {
    aten.add.Tensor: torch.add, aten.sub.Tensor: torch.sub, aten.mul.Tensor: torch.mul, aten.div.Tensor: torch.div,
    aten.neg.default: torch.neg, aten.sqrt.default: torch.sqrt, aten.rsqrt.default: torch.rsqrt, aten.exp.default: torch.exp,
    aten.sigmoid.default: torch.sigmoid, aten.tanh.default: torch.tanh, aten.clamp.default: torch.clamp,
    aten.mean.dim: torch.mean, aten.sum.dim_IntList: torch.sum,
}  # fmt: skip
"""Functions of torch with the arguments of these operations, and `out`."""
