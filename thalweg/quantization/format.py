"""The contract between checkpoint formats and layers.

A `Scheme` assigns a `WeightFormat` to each parameter. A `Format` is the scheme of a checkpoint, and the reader of its tensors:
one file each in `formats/`, or an installed package. It knows no model, no device and no file.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from thalweg.checkpoint.weights import TensorHeaders
from thalweg.errors import UnsupportedModelError
from thalweg.hal.weights import DENSE, QTensor, WeightFormat

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

QUANTISED = ("linear", "experts", "head", "table")
"""Roles of parameters that a format may hold quantised; of others (embeddings, tied or not, norms, routers) it is not asked."""


class Scheme(Protocol):
    def of(self, role: str, name: str) -> WeightFormat:
        """The format of a parameter. role: its use ("linear", "experts", "head", "tied", "embedding", "table", "plain").
        name: the tensor with its weight, present or not: "model.layers.0.mlp.down_proj.weight"."""

    def choose(self, gains: Callable[[WeightFormat], bool]) -> Scheme:
        """The best of its formats for a device. gains: has it a kernel for linear layers of this format, and is that kernel
        faster than its alternatives?"""


CACHE = re.compile(
    r"\.((q|k|v|kv)_scale|[qkv]_zero_point|prob_output_scale|[kv]_cache\.scale|(q|k|v|qkv)_proj\.output_scale|[kv]_proj\.[kv]_bias)$"
)
"""Ends the names of a checkpoint's KV cache scales: those of keys and values, which `quantization.cache` reads, and some unused
ones."""
FLOATS = ("bfloat16", "float16", "float32", "float64")
"""Dtypes of dense weights."""


@dataclass(frozen=True, slots=True)
class WeightPart:
    """One of the tensors in which a checkpoint keeps a quantised weight."""

    shapes: tuple[tuple[int, ...], ...]
    """Those that it may have."""
    optional: bool = False
    dtypes: tuple[str, ...] = ()
    """Accepted dtypes, by torch's names. Empty: any."""
    name: str = ""
    """Its whole name, where that does not begin with the layer's: a tensor of all experts."""
    at: int | None = None
    """Where it is one of several along the tensor's first dimension. Then `shapes` are those of the whole tensor."""


Get = Callable[[str], "Tensor"]
"""The tensor that `parts` has under this suffix ("weight_scale"). KeyError if there is none."""


class Format(ABC):
    """A format of quantised checkpoints. Made from the checkpoint's description. The constructor raises UnsupportedModelError
    with the key of an unsupported setting."""

    name: str
    marks: tuple[str, ...] = ()
    """Suffixes of tensors, after the layer's name and a dot. Every quantised layer has one, and no dense layer has any.
    Where files are available, they decide which layers are quantised, and rules are checked with them."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.description = description
        self.stored: Mapping[str, tuple[str, tuple[int, ...]]] | None = description.get("stored")
        """The files' tensors, name -> (dtype, shape). None: there are no files, as with load_format "dummy"."""

    @abstractmethod
    def scheme(self, layer: str) -> WeightFormat | None:
        """The format of this layer's weight ("model.layers.0.mlp.down_proj"); None: it is dense in the files."""

    @abstractmethod
    def parts(self, layer: str, shape: tuple[int, int]) -> Mapping[str, WeightPart]:
        """The tensors of a quantised weight [outputs, inputs], by their suffix after the layer's name and a dot. Parts with a
        whole name have that."""

    @abstractmethod
    def read(self, layer: str, shape: tuple[int, int], get: Get) -> QTensor:
        """The weight in canonical form, of the format that `scheme` says. Scales have a row for every output, so that
        weights may be joined and divided among ranks."""

    def blocks(self, layer: str) -> str:
        """The GGUF type of the rows in the tensor "weight" of this layer, if they are in order, so that a kernel may unpack
        them itself. Default: "", no GGUF blocks."""
        return ""

    def ignores(self, name: str) -> bool:
        """May this tensor, which is part of no weight, be left unread? Default: scales of a quantised KV cache (CACHE)."""
        return CACHE.search(name) is not None

    def cache(self) -> str:
        """The type that the checkpoint means for cached keys and values: a name of `options.cache.KV_CACHE_DTYPES`. "": it does
        not say, which is the default. Never raises: a type that cannot be used leaves keys and values as they are."""
        return ""

    def apply_method(self, method: str) -> Format | None:
        """The same weights with inputs as in the online method of this name. None: unsupported by this format. Default:
        never."""
        return None

    def choose(self, gains: Callable[[WeightFormat], bool]) -> Format:
        return self

    def of(self, role: str, name: str) -> WeightFormat:
        found = (self._layer_format(name.removesuffix(".weight")) if role in QUANTISED else None) or DENSE
        if role != "experts":
            return found
        if found.reordered or found.smoothed:
            what = "in another order (act-order)" if found.reordered else "times vectors (pre_quant_scale)"
            raise UnsupportedModelError(
                f"quantization_config: {name} reads its inputs {what}: this version supports that for linear layers only, "
                "not for experts"
            )
        return replace(found, act="") if found.act else found  # their op rounds no inputs

    def mark(self, layer: str) -> str | None:
        """The name of the tensor by which the files show that they hold this layer quantised, if they do."""
        return next((name for m in self.marks if self.entry(name := f"{layer}.{m}") is not None), None)

    def _layer_format(self, layer: str) -> WeightFormat | None:
        """The format by `scheme`, checked with the files. UnsupportedModelError for a quantised layer that rules exclude."""
        layer_scheme = self.scheme(layer)
        if self.stored is None or not self.marks:
            return layer_scheme
        mark = self.mark(layer)
        if mark is None:  # dense, unless it is neither: then its reader names the missing tensor
            weight = self.entry(f"{layer}.weight")
            return layer_scheme if weight is None or weight[0] not in FLOATS else None
        if layer_scheme is None:
            raise UnsupportedModelError(
                f"quantization_config: its rules leave {layer} dense, but the files hold {mark}: fix the rules or the file"
            )
        return layer_scheme

    def entry(self, name: str) -> tuple[str, tuple[int, ...]] | None:
        """(dtype, shape) of a tensor in the files, which may have the name of a multimodal model's text part."""
        stored = self.stored or {}
        return next((stored[n] for n in _spellings(name) if n in stored), None)

    def value(self, name: str) -> np.ndarray | None:
        """A small tensor of the files, under either name. None if there is none, or there are no files."""
        found = next((n for n in _spellings(name) if n in (self.stored or {})), None)
        return self.stored.read(found) if found is not None and isinstance(self.stored, TensorHeaders) else None


def _spellings(name: str) -> tuple[str, ...]:
    return name, f"language_model.{name}", name.replace("model.", "model.language_model.", 1)
