"""A model served through transformers, declared: attention of its layers, tensors by name and shape. Loads no framework."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from thalweg.models.spec import Attention, Layer, ModelSpec, Norms
from thalweg.models.weights import Fill, Role, Source, Weight, Weights

UNRELIABLE = (
    "served through transformers' own module: batch invariance, seeds across batches and exact reuse of cached prefixes do not "
    "hold"
)
"""Warning in the plan and the log of every such model."""


@dataclass(frozen=True, slots=True)
class OpaqueFFN:
    """The part between attention layers, as far as it counts for a step's temporaries."""

    width: int

    def weights(self, at: str, hidden: int) -> Weights:
        return {}


@dataclass(frozen=True, slots=True)
class ModuleParameter:
    """A parameter of the module, by its own name there."""

    name: str
    shape: tuple[int, ...]
    """(): a single number, which is read as a vector of one."""
    role: Role = "plain"
    dtype: str = ""
    """The dtype in memory, whatever the model's dtype; "" = the model's."""
    source: str = ""
    """The parameter that it is too, and is read as; "" = itself."""
    act: str = ""
    """Activation of experts by this weight, [experts, outputs, inputs], as `ops.experts` names it."""

    @property
    def weight(self) -> Weight:
        """That of experts as one matrix, of one expert's rows after another's."""
        shape = (self.shape[0] * self.shape[1], self.shape[2]) if self.act else self.shape or (1,)
        return Weight((Source(self.source or self.name, shape),), role=self.role, fill=self._fill, dtype=self.dtype)

    @property
    def whole(self) -> Weight:
        """As the module has it."""
        return Weight((Source(self.source or self.name, self.shape),), dtype=self.dtype)

    @property
    def _fill(self) -> Fill:
        if len(self.shape) > 1:
            return "normal"
        return "ones" if self.name.endswith("weight") else "zeros"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersSpec(ModelSpec):
    """The spec of a class of transformers. The module defines its layers. Declared are the state per sequence, and the
    tensors read from a checkpoint."""

    config: dict[str, Any] = field(default_factory=dict, compare=False)
    """config.json, as it was read."""
    held: tuple[ModuleParameter, ...] = ()
    products: tuple[ModuleParameter, ...] = ()
    """Weights of products that thalweg's ops compute: of linear layers by the layer's name, of experts by their own."""
    values: tuple[int, ...] = ()
    """Per layer: values of a head, which are fewer than those of a key in some."""
    ignored: tuple[str, ...] = ()
    """Patterns of names in checkpoints that the class has no use for."""

    def weights(self) -> Weights:
        result = {"module": {each.name: each.weight for each in self.held}}
        return result | ({"products": {each.name: each.weight for each in self.products}} if self.products else {})

    def rename(self, name: str) -> str | None:
        """The name itself. Names in files are transformers' to convert."""
        useless = name.endswith("rotary_emb.inv_freq") or any(re.search(pattern, name) for pattern in self.ignored)
        return None if useless else name


def attends(
    heads: int, kv_heads: int, head_dim: int, scale: float, sees: int, softcap: float, sinks: bool, width: int
) -> Layer:
    """sees: tokens of a window, 0 = all before it, -1 = all of its sequence."""
    mixer = Attention(
        heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=scale, window=max(0, sees), causal=sees >= 0, softcap=softcap,
        sinks="sinks" if sinks else "",
    )  # fmt: skip
    return Layer(mixer, OpaqueFFN(width), Norms())
