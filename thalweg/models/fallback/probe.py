"""What a class of transformers does, seen by running it once on arrays without memory: which attention it has, layer by layer,
and whether its shapes follow from those of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from thalweg.errors import UnsupportedModelError
from thalweg.models.fallback import attention, masks

TOKENS = 7
"""Of the run. No class has a size of this number."""
MIXES = {
    "convolution": "a convolution over tokens", "cumprod": "a product over tokens", "cummax": "a maximum over tokens",
    "logcumsumexp": "a sum over tokens", "_scaled_dot_product_flash_attention": "attention that cannot be exchanged",
    "_scaled_dot_product_efficient_attention": "attention that cannot be exchanged",
    "_scaled_dot_product_attention_math": "attention that cannot be exchanged",
    "scaled_dot_product_attention": "attention that cannot be exchanged",
}  # fmt: skip
"""Operations that would let requests of one step see each other, by name."""


@dataclass(frozen=True, slots=True)
class Call:
    """One layer's attention, as a module calls it."""

    name: str
    """Of the module that calls."""
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    sees: int = masks.FULL
    """As `masks` names it."""
    softcap: float = 0.0
    sinks: bool = False


@dataclass(slots=True)
class Seen:
    """Takes the attention of a probed module, and writes it down."""

    names: Mapping[int, str]
    masked: bool
    """Masks are made in this run."""
    calls: list[Call] = field(default_factory=list)

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, said: Mapping[str, Any]
    ) -> Tensor:
        name = self.names.get(id(module), type(module).__name__)
        made = read(name, q, k, v, said, _sees(mask, module, said, self.masked))
        if any(c.name == name for c in self.calls):
            raise UnsupportedModelError(f"{name} attends more than once in a step")
        self.calls.append(made)
        return q.new_empty(1, q.shape[2], q.shape[1], v.shape[3])


def read(name: str, q: Tensor, k: Tensor, v: Tensor, said: Mapping[str, Any], sees: int) -> Call:
    """One call as it is declared. UnsupportedModelError where tokens are not what a step has, or a number is no number."""
    tokens = q.shape[2]
    if q.dim() != 4 or q.shape[0] != 1 or k.shape[2] != tokens or v.shape[2] != tokens:
        raise UnsupportedModelError(f"{name}: its keys are of other tokens than its queries ({tuple(q.shape)}, {tuple(k.shape)})")
    if k.shape[3] != q.shape[3] or v.shape[1] != k.shape[1] or q.shape[1] % k.shape[1] or v.shape[3] > q.shape[3]:
        raise UnsupportedModelError(f"{name}: heads of {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)} do not fit")
    scale, cap = said.get("scaling"), said.get("softcap")
    for what, number in (("scaling", scale), ("softcap", cap)):
        if number is not None and not isinstance(number, int | float):
            raise UnsupportedModelError(f"{name}: its {what} is a {type(number).__name__}, and must be a number")
    return Call(
        name, q.shape[1], k.shape[1], q.shape[3], v.shape[3], float(q.shape[3] ** -0.5 if scale is None else scale), sees,
        float(cap or 0.0), said.get("s_aux") is not None,
    )  # fmt: skip


def _sees(mask: Tensor | None, module: nn.Module, said: Mapping[str, Any], masked: bool) -> int:
    """What a token of this layer sees, where mask, argument and module agree."""
    window = said.get("sliding_window") or masks.FULL
    causal = said.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    if mask is not None and masks.marked(mask) is None:
        raise UnsupportedModelError("it makes or changes masks of its own")
    if not masked:
        return window if causal else masks.BOTH
    sees = masks.marked(mask)
    if sees is None:
        sees = window if causal else masks.BOTH
    return sees


@contextmanager
def _watched() -> Iterator[None]:
    """UnsupportedModelError for operations that mix tokens."""
    with _Watch():
        yield


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        what = MIXES.get(func.overloadpacket.__name__)
        if what is not None:
            raise UnsupportedModelError(f"it has {what} ({func.overloadpacket.__name__}), which would mix requests")
        return func(*args, **(kwargs or {}))


def run(base: nn.Module, implementation: str) -> list[Call]:
    """The attention calls of one step of `TOKENS` tokens, in order. base: on the meta device, without its head."""
    names = {id(module): name for name, module in base.named_modules()}
    seen = Seen(names, implementation == attention.PROBED)
    ids = torch.zeros(1, TOKENS, dtype=torch.long, device="meta")
    given = {"attention_mask": torch.ones(1, TOKENS, dtype=torch.bool, device="meta")} if seen.masked else {}
    base.set_attn_implementation(implementation)  # type: ignore[operator]
    with torch.inference_mode(), _watched():
        base(input_ids=ids, position_ids=ids, use_cache=False, **given, **{attention.HANDED: seen})
    return seen.calls
