"""Norms, and where a layer has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thalweg.models.weights import Weights, linear, vector


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm over the last `size` values (`ops.rms_norm`)."""

    name: str
    """Relative to the part that contains it, or with a slash before it, from the root: layers may share a norm."""
    size: int
    eps: float
    offset: float = 0.0
    """Added to the weight; the product with it is then taken in float32 (Gemma: 1)."""
    weight: bool = True

    def __post_init__(self) -> None:
        if self.offset and not self.weight:
            raise ValueError("Norm: an offset is added to a weight")

    def weights(self, at: str) -> Weights:
        if not self.weight:
            return {}
        name = self.name.removeprefix("/") if self.name.startswith("/") else f"{at}{self.name}"
        return {"weight": vector(f"{name}.weight", self.size, fill="zeros" if self.offset else "ones")}


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Layer normalisation over the last `size` values (`ops.layer_norm`)."""

    name: str
    size: int
    eps: float
    bias: bool = True
    weight: bool = True
    offset: float = 0.0
    """Added to the weight (Nemotron: 1)."""

    def __post_init__(self) -> None:
        if self.bias and not self.weight:
            raise ValueError("LayerNorm: this version has no norm with a bias and no weight")

    def weights(self, at: str) -> Weights:
        at = f"{at}{self.name}"
        result = {"weight": vector(f"{at}.weight", self.size, fill="zeros" if self.offset else "ones")} if self.weight else {}
        return result | ({"bias": vector(f"{at}.bias", self.size, fill="zeros")} if self.bias else {})


@dataclass(frozen=True, slots=True)
class Scale:
    """An affine map where others have norms: (x * by + more - less) * weight, in float32. Names are those of tensors."""

    name: str
    """Of the weight."""
    size: int
    by: float = 1.0
    less: str = ""
    """"" = nothing is taken off."""
    more: str = ""
    """What is added to x before; "" = nothing."""

    def weights(self, at: str) -> Weights:
        result = {"weight": vector(f"{at}{self.name}", self.size, fill="ones")}
        parts = {key: name for key, name in (("less", self.less), ("more", self.more)) if name}
        return result | {key: vector(f"{at}{name}", self.size, fill="zeros") for key, name in parts.items()}


@dataclass(frozen=True, slots=True)
class PairNorm:
    """Norms of both parts of a pair, an embedding x and a hidden state h. The layer reads [token(x), hidden(h)]."""

    token: Norm
    hidden: Norm
    normed: bool = False
    """The residual stream begins with hidden(h). Otherwise it begins with h."""

    def weights(self, at: str) -> Weights:
        return {"token": self.token.weights(at), "hidden": self.hidden.weights(at)}


@dataclass(frozen=True, slots=True)
class ScaledNorm:
    """RMSNorm of x * (1 + weight), without a factor after it (Muse Spark)."""

    name: str
    size: int
    eps: float

    def weights(self, at: str) -> Weights:
        return {"weight": vector(f"{at}{self.name}.weight", self.size, fill="zeros")}


@dataclass(frozen=True, slots=True)
class GatedNorm:
    """y * sigmoid(up(silu(down(y)))), where y is RMSNorm of x (A.X K2, GigaChat 3.5)."""

    name: str
    size: int
    eps: float
    rank: int
    """Outputs of down."""
    offset: float = 0.0
    """Of RMSNorm, as `Norm.offset`."""
    factor: float = 1.0
    """Of the result."""
    names: tuple[str, str, str] = ("norm", "W_down", "W_up")
    """Of RMSNorm, of down and of up, inside `name`. "": the weight is `name`'s."""

    def weights(self, at: str) -> Weights:
        at, (norm, down, up) = f"{at}{self.name}", self.names
        return {
            "norm": Norm(f".{norm}" if norm else "", self.size, self.eps, self.offset).weights(at),
            "down": linear({f"{at}.{down}": self.rank}, self.size, shard=None),
            "up": linear({f"{at}.{up}": self.size}, self.rank, shard=None),
        }


@dataclass(frozen=True, slots=True)
class DenseNorm:
    """norm(act(dense(x))): what BERT's heads compute before the output matrix."""

    dense: str
    norm: LayerNorm
    act: str = "gelu"
    """As `ops.activation` names it."""
    bias: bool = True
    """Of dense."""
    before: LayerNorm | None = None
    """The norm of dense's input."""

    def weights(self, at: str) -> Weights:
        return {
            "dense": linear({f"{at}{self.dense}": self.norm.size}, self.norm.size, shard=None, bias=self.bias),
            "norm": self.norm.weights(at),
            **({} if self.before is None else {"before": self.before.weights(at)}),
        }


@dataclass(frozen=True, slots=True)
class NestedNorm:
    """outer(h + inner(h + x)), where h is the residual stream and x the output of a part. Only after an addition."""

    inner: LayerNorm
    outer: LayerNorm

    def weights(self, at: str) -> Weights:
        return {"inner": self.inner.weights(at), "outer": self.outer.weights(at)}


AnyNorm = Norm | LayerNorm | Scale | PairNorm | ScaledNorm | GatedNorm | DenseNorm | NestedNorm


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMSNorm of q and k, and maybe of v, or layer normalisation of q and k (`mean`)."""

    eps: float
    offset: float = 0.0
    after: bool = False
    """After rotation, not before it."""
    whole: bool = False
    """Over all heads at once, not each head's own. Ranks gather all heads for it."""
    weight: bool = True
    value: bool = False
    """Each head of v is normed too, without a weight."""
    q: str = "q_norm"
    k: str = "k_norm"
    mean: bool = False
    """Layer normalisation without a bias, with a weight per head. Names with {} are those of one head's tensor."""
    shared: bool = False
    """With `mean`: all heads have one weight and one bias, or with `whole` a value of both for each value of all heads."""
    biased: bool = False
    """With `mean`: each head has a bias, as it has a weight."""
    apart: bool = False
    """RMSNorm with a weight per head, in tensors [heads, values of a head] of exactly these names."""

    def __post_init__(self) -> None:
        if self.mean and (self.offset or self.after or self.value or not self.weight):
            raise ValueError("HeadNorm: layer normalisation of heads has weights, before rotation, and no offset")
        if self.mean and self.whole and not self.shared:
            raise ValueError("HeadNorm: layer normalisation over all heads has one weight and one bias: it is shared")
        if self.apart and (self.mean or self.offset or self.after or self.whole or self.value or not self.weight):
            raise ValueError("HeadNorm: weights per head are of RMSNorm, before rotation, and without an offset")
        if self.shared and not self.mean:
            raise ValueError("HeadNorm: shared is only for layer normalisation")
        if self.biased and (not self.mean or self.shared or "{}" in self.q + self.k):
            raise ValueError("HeadNorm: a bias per head is of layer normalisation, in one tensor for all heads")


@dataclass(frozen=True, slots=True)
class Norms:
    """The norms of a layer: before attention and the feed-forward part, after them before the residual addition, and after that
    addition, where the result is the stream (post-norm). None: not there."""

    mixer: AnyNorm | None = None
    mixer_out: AnyNorm | None = None
    ffn: AnyNorm | None = None
    ffn_out: AnyNorm | None = None
    mixer_sum: AnyNorm | None = None
    ffn_sum: AnyNorm | None = None

    KEYS: ClassVar[tuple[str, ...]] = ("mixer", "mixer_out", "ffn", "ffn_out", "mixer_sum", "ffn_sum")
