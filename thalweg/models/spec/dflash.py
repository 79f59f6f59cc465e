"""DFlash and DSpark: drafters that fill a block of masks in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from thalweg.models.spec.model import ModelSpec
from thalweg.models.spec.norm import Norm
from thalweg.models.weights import Source, Weight, Weights, linear, matrices


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """DSpark's Markov head: logits + w2(f(w1[token before])), where w1 has a row for each of the target's tokens, and w2 one
    for each of the drafter's. With e = w1[token before] and h the output of the layers:

        vanilla: f = e
        gated:   f = sigmoid(gate([h, e])) * e
        rnn:     a, b, c = joint([state, e, h]);  state' = sigmoid(a) * state + (1 - sigmoid(a)) * tanh(b);  f = tanh(c)"""

    kind: Literal["vanilla", "gated", "rnn"]
    rank: int
    """Values of e."""
    known: int
    """Tokens of the target."""

    def weights(self, root: str, hidden: int, vocab: int) -> Weights:
        at, r = f"{root}markov_head.", self.rank
        result: dict[str, Any] = {
            "table": Weight((Source(f"{at}markov_w1.weight", (self.known, r)),), role="embedding"),
            "out": linear({f"{at}markov_w2": vocab}, r, shard=None),
        }
        if self.kind == "gated":
            result["mix"] = linear({f"{at}gate_proj": r}, hidden + r, shard=None, bias=True)
        elif self.kind == "rnn":
            result["mix"] = linear({f"{at}joint_proj": 3 * r}, 2 * r + hidden, shard=None, bias=True)
        return result


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
    chain: Chain | None = None
    """DSpark: the addition to the logits of a draft by the token before it. None: there is none."""
    layer: str = "layers.{}."
    root: str = ""

    @property
    def most(self) -> int:
        """Drafts of a block."""
        return self.block if self.from_newest else self.block - 1

    def weights(self) -> Weights:
        assert self.norm is not None
        result: dict[str, Any] = {
            "fc": linear({f"{self.root}fc": self.hidden}, self.hidden * len(self.taps), shard=None),
            "context_norm": self.context_norm.weights(self.root),
            "layers": {i: layer.weights(self.root + self.layer.format(i), self.hidden) for i, layer in enumerate(self.layers)},
            "norm": self.norm.weights(self.root),
        }
        if self.chain is not None:
            result["chain"] = self.chain.weights(self.root, self.hidden, self.vocab)
        if self.has_head:
            result["head"] = {"weight": matrices({self.head: self.vocab}, self.hidden, shard=0, role="head")}
        return result
