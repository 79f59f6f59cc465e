"""Probing of a transformers class by a run on the meta device: the attention of each layer, and whether its shapes follow from
those of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from thalweg.errors import UnsupportedModelError
from thalweg.models.fallback import attention, masks
from thalweg.models.fallback.products import LinearUsage

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
class AttentionCall:
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
class AttentionProbe:
    """Handles the attention of a probed module, and records the calls."""

    names: Mapping[int, str]
    known: Mapping[str, int] | None
    """The attention pattern of each layer, from an earlier run with masks. None: this is that run."""
    calls: list[AttentionCall] = field(default_factory=list)

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, arguments: Mapping[str, Any]
    ) -> Tensor:
        name = self.names.get(id(module), type(module).__name__)
        sees = _sees(mask, module, arguments) if self.known is None else self.known.get(name, masks.FULL)
        if self.known is not None and mask is not None:
            raise UnsupportedModelError("it makes or changes masks by itself")
        result = read(name, q, k, v, arguments, sees)
        if any(c.name == name for c in self.calls):
            raise UnsupportedModelError(f"{name} attends more than once in a step")
        self.calls.append(result)
        return q.new_empty(1, q.shape[2], q.shape[1], v.shape[3])


def read(name: str, q: Tensor, k: Tensor, v: Tensor, arguments: Mapping[str, Any], sees: int) -> AttentionCall:
    """The declaration of one call. UnsupportedModelError for another number of tokens than the step's, or an array as scale."""
    tokens = q.shape[2]
    if q.dim() != 4 or q.shape[0] != 1 or k.shape[2] != tokens or v.shape[2] != tokens:
        raise UnsupportedModelError(
            f"{name}: its keys are of other tokens than its queries ({tuple(q.shape)}, {tuple(k.shape)})"
        )
    if k.shape[3] != q.shape[3] or v.shape[1] != k.shape[1] or q.shape[1] % k.shape[1] or v.shape[3] > q.shape[3]:
        raise UnsupportedModelError(f"{name}: heads of {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)} do not fit")
    scale, cap = arguments.get("scaling"), arguments.get("softcap")
    for what, number in (("scaling", scale), ("softcap", cap)):
        if number is not None and not isinstance(number, int | float):
            raise UnsupportedModelError(f"{name}: its {what} is a {type(number).__name__}, and must be a number")
    return AttentionCall(
        name, q.shape[1], k.shape[1], q.shape[3], v.shape[3], float(q.shape[3] ** -0.5 if scale is None else scale), sees,
        float(cap or 0.0), arguments.get("s_aux") is not None,
    )  # fmt: skip


def _sees(mask: Tensor | None, module: nn.Module, arguments: Mapping[str, Any]) -> int:
    """Attention pattern of this layer: by its mask, or without one by its arguments."""
    window = arguments.get("sliding_window") or masks.FULL
    causal = arguments.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    if mask is None:
        return window if causal else masks.BOTH
    sees = masks.read_mark(mask)
    if sees is None:
        raise UnsupportedModelError("it makes or changes masks by itself")
    if window not in (masks.FULL, sees):
        raise UnsupportedModelError(f"its mask and its arguments differ: a window of {window}, and {sees}")
    return sees


class TokenMixDetector(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """UnsupportedModelError for operations that mix tokens. Records whether positions are read, or recounted."""

    def __init__(self, positions: Tensor | None, products: LinearUsage | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._positions, self._products, self.read, self.counted = positions, products, False, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in MIXES:
            raise UnsupportedModelError(f"it has {MIXES[name]} ({name}), which would mix requests")
        taken = [a for each in args for a in (each if isinstance(each, list | tuple) else (each,)) if isinstance(a, Tensor)]
        self.read |= any(a is self._positions for a in taken)
        if self._products is not None:
            self._products.others.update(map(id, taken))
        out = func(*args, **(kwargs or {}))
        self.counted |= name == "arange" and out.numel() == TOKENS
        return out


def run(base: nn.Module, known: Mapping[str, int] | None = None, products: LinearUsage | None = None) -> list[AttentionCall]:
    """The attention calls of one step of `TOKENS` tokens, in order. base: on the meta device, without its head. known: as in
    `AttentionProbe`. With it the model runs as it will be served, without masks. products: records the linear layers' use of
    tensors."""
    conv = next((name for name, m in base.named_modules() if isinstance(m, nn.Conv1d)), None)
    if conv is not None:
        raise UnsupportedModelError(f"it has {MIXES['convolution']} ({conv}), which would mix requests")
    seen = AttentionProbe({id(module): name for name, module in base.named_modules()}, known)
    ids, positions = (torch.zeros(1, TOKENS, dtype=torch.long, device="meta") for _ in range(2))
    watch = TokenMixDetector(positions, products)
    given = {"attention_mask": torch.ones(1, TOKENS, dtype=torch.bool, device="meta")} if known is None else {}
    base.set_attn_implementation(attention.PROBED if known is None else attention.NAME)  # type: ignore[operator]
    with torch.inference_mode(), watch:
        base(input_ids=ids, position_ids=positions, use_cache=False, **given, **{attention.HANDED: seen})
    if not seen.calls:
        raise UnsupportedModelError("its attention cannot be exchanged")
    if watch.counted or not watch.read:
        how = "it counts the tokens of a step" if watch.counted else "it reads no positions"
        raise UnsupportedModelError(f"{how}, where several requests share one")
    return seen.calls
