"""EAGLE's drafters: layers that read hidden states of the target's layers and the embedding of the next token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.model import ModelSpec
from thalweg.models.spec.norm import AnyNorm, Norm
from thalweg.models.weights import Source, Weight, Weights, linear, matrices


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleSpec(ModelSpec):
    """EAGLE-1 (Li et al. 2024, https://arxiv.org/abs/2401.15077): g = h(i), layers(fc([embed(t(i + 1)), g])).
    EAGLE-3 (Li et al. 2025, https://arxiv.org/abs/2503.01840): g = fc([h of each tap]), and the first layer's norm is a
    `PairNorm` of embed(t(i + 1)) and g.

    P-EAGLE (https://github.com/vllm-project/speculators): EAGLE-3, with masks for the tokens after t(i + 1).

    Further passes read the layers' output as g. `vocab` is that of the drafts. Names of tensors are relative to `root`."""

    taps: tuple[int, ...]
    """Places of the hidden states, as in `models.drafts.taps`."""
    target_hidden: int
    """Values of each."""
    fc_bias: bool = False
    tap_norms: tuple[Norm, ...] = ()
    """Of each tapped state."""
    joined_norm: Norm | None = None
    """Of all tapped states, concatenated."""
    feeds_normed: bool = False
    """Do further passes read the output after `norm`? Otherwise they read it before that."""
    paired: bool = False
    """EAGLE-3: the first layer reads both parts of a pair."""
    embedded: int = 0
    """Rows of the drafter's embedding. 0: it uses the target's."""
    has_head: bool = False
    """Does it have an output matrix? Otherwise it uses the target's."""
    mapped: bool = False
    """The tensor "d2t" maps drafts to the target's vocabulary: token i of the drafter is token i + d2t[i]."""
    mask: int | None = None
    """P-EAGLE: the id of masks, whose hidden states of the target are the tensor "mask_hidden". None: there are no masks."""
    layer: str = "layers.{}."
    root: str = ""

    def weights(self) -> Weights:
        width = self.target_hidden * len(self.taps) if self.paired else 2 * self.hidden
        result: dict[str, Any] = {
            "fc": linear({f"{self.root}fc": self.hidden}, width, shard=None, bias=self.fc_bias),
            "layers": {i: layer.weights(self.root + self.layer.format(i), self.hidden) for i, layer in enumerate(self.layers)},
        }
        if self.paired:  # its first layer projects both parts at once
            first, mixer = result["layers"][0], self.layers[0].mixers[0]
            wide = mixer.weights(self.root + self.layer.format(0), 2 * self.hidden)
            result["layers"][0] = {**first, "mixer": {**first["mixer"], "qkv": wide["qkv"]}}
        if self.tap_norms:
            result["tap_norms"] = {i: norm.weights(self.root) for i, norm in enumerate(self.tap_norms)}
        norms: tuple[tuple[str, AnyNorm | None], ...] = (("joined_norm", self.joined_norm), ("norm", self.norm))
        result |= {key: norm.weights(self.root) for key, norm in norms if norm is not None}
        if self.mask is not None:
            result["mask"] = Weight((Source(f"{self.root}mask_hidden", (1, 1, width)),))
        if self.embedded:
            result["table"] = {
                "weight": matrices({f"{self.root}{self.embed}": self.embedded}, self.hidden, shard=1, role="embedding")
            }
        if self.has_head:
            result["head"] = {"weight": matrices({self.head: self.vocab}, self.hidden, shard=0, role="head")}
        return result
