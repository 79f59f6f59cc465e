"""A module for multi-token prediction (MTP): layers that read the target's hidden states and draft the token after next."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.spec.model import ModelSpec
from thalweg.models.spec.norm import AnyNorm
from thalweg.models.weights import Weights, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class MTPSpec(ModelSpec):
    """layers(proj([hidden_norm(h(i)), token_norm(embed(t(i + 1)))])), then `norm`, if it has one. The target's output matrix
    then gives t(i + 2). h(i) is the target's hidden state after its last norm, or before it (`raw`). Names of tensors are
    relative to `root`, which only this module has. The embedding and the output matrix are the target's."""

    token_norm: AnyNorm
    hidden_norm: AnyNorm
    proj: str
    """The matrix [hidden, 2 * hidden]."""
    hidden_first: bool
    """Is the hidden state before the embedding in its input?"""
    raw: bool = False
    """Hidden states are sums after a last layer, before the norm that follows: those of the target, and its own in further
    passes."""
    cache: int | None = None
    """The target's layer whose keys and values its only layer reads: both have the same attention. None: its layers have
    caches."""
    layer: str = ""
    folder: str = ""
    """Subfolder of the model's files that holds these tensors, with `folder`/ before their names here. "": the files do."""

    @property
    def folders(self) -> tuple[str, ...]:
        return (self.folder,) if self.folder else ()

    def weights(self) -> Weights:
        return {
            "token_norm": self.token_norm.weights(self.root),
            "hidden_norm": self.hidden_norm.weights(self.root),
            "proj": linear({f"{self.root}{self.proj}": self.hidden}, 2 * self.hidden, shard=None),
            "layers": {i: layer.weights(self.root + self.layer.format(i), self.hidden) for i, layer in enumerate(self.layers)},
            **({} if self.norm is None else {"norm": self.norm.weights(self.root)}),
        }

    def rename(self, name: str) -> str | None:
        """The name with the replacements inside it. None for tensors of the target, and for those that `names` skips."""
        for old, new in self.names.inside:
            name = name.replace(old, new)
        skipped = name.startswith(self.names.skip) or name.endswith("rotary_emb.inv_freq")
        return name if name.startswith(self.root) and not skipped else None
