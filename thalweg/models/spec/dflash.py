"""DFlash: a drafter that fills a block of masks in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.model import ModelSpec
from thalweg.models.spec.norm import Norm
from thalweg.models.weights import Weights, linear, matrices


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashSpec(ModelSpec):
    """c = context_norm(fc([h of each tap])) gives the keys and values of all known tokens but the newest, in every layer. The
    layers read the embeddings of the newest token and of masks, which see c and each other. `vocab` is that of the drafts."""

    taps: tuple[int, ...]
    """Places of the hidden states, as in `models.drafts.taps`."""
    context_norm: Norm
    block: int
    """Tokens of a block in training, the newest one included."""
    mask: int
    """The id of a mask."""
    from_newest: bool = False
    """The output at the newest token is the first draft. Otherwise that at the first mask is."""
    has_head: bool = False
    """Does it have an output matrix? Otherwise it uses the target's."""
    mapped: bool = False
    """As in `EagleSpec`."""
    layer: str = "layers.{}."
    root: str = ""

    @property
    def most(self) -> int:
        """Drafts of a block."""
        return self.block if self.from_newest else self.block - 1

    def weights(self) -> Weights:
        assert self.norm is not None
        made: dict[str, Any] = {
            "fc": linear({f"{self.root}fc": self.hidden}, self.hidden * len(self.taps), shard=None),
            "context_norm": self.context_norm.weights(self.root),
            "layers": {i: layer.weights(self.root + self.layer.format(i), self.hidden) for i, layer in enumerate(self.layers)},
            "norm": self.norm.weights(self.root),
        }
        if self.has_head:
            made["head"] = {"weight": matrices({self.head: self.vocab}, self.hidden, shard=0, role="head")}
        return made
