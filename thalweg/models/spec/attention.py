"""Attention that keeps keys and values of every token, or of a window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from thalweg.hal.attention import AttnSpec
from thalweg.hal.kv import KVKind
from thalweg.models.spec.low_rank import LowRankProduct
from thalweg.models.spec.norm import HeadNorm, LayerNorm, Norm
from thalweg.models.spec.rope import Rope
from thalweg.models.weights import Source, TensorView, Weight, Weights, heads_of_rank, linear, vector

PLACES = 4
"""Values of a key that say its position, in layers with slopes: two numbers exact in any type, twice, for two parts of a
slope."""
STEP = 16
"""Kept keys are a multiple of so many values there, as kernels take them."""


@dataclass(frozen=True, slots=True)
class RelativeBias:
    """Added to scores by how far apart two tokens are: a number per head and bucket of distances (Raffel et al. 2019,
    https://arxiv.org/abs/1910.10683). In bidirectional attention half of the buckets are for keys after the query. Half
    of those for one direction have one distance each."""

    name: str
    """The tensor [buckets, heads], from the root: all layers share it."""
    buckets: int = 32
    distance: int = 128
    """Tokens this far apart and further are in the last bucket."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Of q, k or v: the rows of a stored tensor that hold it, `run` of every `every` from `first` on."""

    name: str
    first: int
    run: int
    every: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Self-attention with grouped queries."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope | None = None
    """None: NoPE."""
    window: int = 0
    """Tokens that a token sees, itself included; 0 = all before it. In bidirectional attention: as many after it too."""
    chunk: int = 0
    """Positions are split into chunks of this many tokens, and a token sees its chunk up to itself; 0 = one chunk."""
    causal: bool = True
    """False: a token sees its whole sequence, which must be in one step; keys and values are not kept (an encoder)."""
    scale: float = 0.0
    """Of the scores; 0 = head_dim ** -0.5."""
    softcap: float = 0.0
    norm: HeadNorm | None = None
    value_dim: int = 0
    """Values of a head of v and of the output; 0 = as many as of q. Caches pad v with zeros."""
    value_scale: float = 1.0
    """Of v."""
    slopes: tuple[float, ...] = ()
    """Of each head (ALiBi, Press et al. 2021): a score falls by so much for each token between query and key. () = it does not.
    Keys are kept with their position (`PLACES`), in the model's type."""
    clip: float = 0.0
    """The projection's outputs are clipped to at most this magnitude; 0 = no clipping."""
    bias: bool = False
    """Of q, k and v."""
    key_bias: bool = True
    """False: where q and v have a bias, k has none."""
    out_bias: bool = False
    gated: bool = False
    """The projection of q gives each head's q, then as many values. The head's output is multiplied by their sigmoids."""
    gate: str = ""
    """The same gate from a separate matrix, by its name; "" = none."""
    softplus: bool = False
    """The activation of that matrix is softplus, not a sigmoid."""
    gate_heads: bool = False
    """And one value for each head."""
    inputs: int = 0
    """Of q, k and v; 0 = as many as the layer has outputs."""
    low_rank: LowRankProduct | None = None
    """Added to q, k and v."""
    out_eps: float = 0.0
    """Of an RMSNorm of each head's output, before a gate and without a weight; 0 = no norm."""
    out_norm: LayerNorm | None = None
    """Of all heads' outputs together, before the last product. Ranks gather all heads for it."""
    name: str = "self_attn"
    parts: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj")
    fused: str = ""
    """The tensor of q, k and v, concatenated; "" = one tensor each."""
    grouped: bool = False
    """The fused tensor holds of each head of keys in turn its heads of q, its k and its v."""
    rows: tuple[Rows | None, ...] = (None, None, None)
    """Of q, k and v, and of a gate's matrix, in tensors that mix them; None = the tensor of that name."""
    out: str = "o_proj"
    turned: bool = False
    """Matrices are stored [inputs, outputs]."""
    sinks: str = ""
    """The tensor of a logit per head that joins the softmax's denominator; "" = none."""
    relative: RelativeBias | None = None
    spans: bool = False
    """Tokens of an image, or of a prompt (`ModelSpec.prefix_lm`), see each other, those behind too."""
    grows: tuple[float, int] | None = None
    """(beta, n): q at position p is multiplied by 1 + beta * log(1 + floor((p + first) / n))."""
    first: int = 0
    """Of `grows`: the offset of positions there."""
    keys_as_values: bool = False
    """There is no v. Values are the projection's k, before norms and rotation."""
    reads: int | None = None
    """The earlier layer with the keys and values that it attends to; None = this one. Such a layer only projects queries, and
    has no cache. Everything but `norm.q` and the projections must be as in that layer."""

    def __post_init__(self) -> None:
        for conflict, why in _CONFLICTS:
            if conflict(self):
                raise ValueError(f"Attention: {why}")

    @property
    def kept_dim(self) -> int:
        """Values of a key as it is kept."""
        return -(-(self.head_dim + PLACES) // STEP) * STEP if self.slopes and self.causal else self.head_dim

    def cache_form(self) -> Attention:
        """What layers that read one cache have in common."""
        return replace(self, reads=None)

    @property
    def groups_heads(self) -> bool:
        """`grouped`, where that is another order: of one head of keys, it is not."""
        return self.grouped and self.kv_heads > 1

    @property
    def slope_values(self) -> int:
        """Of the table that slopes are put into."""
        return self.heads * max(1, self.kept_dim - self.head_dim) if self.slopes else 0

    @property
    def widths(self) -> tuple[int, int, int]:
        """Heads, heads of keys and values, values of a head: the sizes of a step's temporaries."""
        return self.heads, self.kv_heads, self.kept_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> AttnSpec:
        """The spec for the attention backend, on one of `ranks`, where no sequence is longer than max_len: a window (a chunk)
        of at least max_len is left out."""
        hides = self.window or self.chunk
        window = hides if hides < max_len else 0
        if not self.causal:
            return AttnSpec(
                heads=self.heads // ranks, kv_heads=heads_of_rank(self.kv_heads, ranks), head_dim=self.head_dim,
                scale=self.scale or self.head_dim**-0.5, dtype=dtype, kind="encoder", window=window, softcap=self.softcap,
                reach=self.relative.distance if self.relative else max(1, max_len - 1) if self.slopes else 0,
            )  # fmt: skip
        kv_dtype = "" if self.slopes else kv_dtype
        kind: KVKind = "full" if not window else "chunked" if self.chunk else "window"
        return AttnSpec(
            heads=self.heads // ranks, kv_heads=heads_of_rank(self.kv_heads, ranks), head_dim=self.kept_dim,
            scale=self.scale or self.head_dim**-0.5, dtype=dtype, kind=kind, window=window,
            softcap=self.softcap, kv_dtype=kv_dtype, sinks=bool(self.sinks), spans=self.spans,
            reach=self.relative.distance if self.relative else 0,
        )  # fmt: skip

    def weights(self, at: str, hidden: int) -> Weights:
        at, d, v_dim = f"{at}{self.name}.", self.head_dim, self.value_dim or self.head_dim
        outputs = (self.heads * d * (2 if self.gated else 1), self.kv_heads * d, self.kv_heads * v_dim)
        projected = 1 if self.reads is not None else 2 if self.keys_as_values else 3
        parts, fused = {f"{at}{self.parts[i]}": outputs[i] for i in range(projected)}, ""
        if self.gate:
            parts[f"{at}{self.gate}"] = self.heads if self.gate_heads else self.heads * d
        shared = (0, *[self.kv_heads] * (projected - 1), *[0] * bool(self.gate))
        if self.groups_heads:
            parts, shared = {f"{at}{self.fused}": sum(outputs)}, (0,)
        elif self.fused:
            fused = f"{at}{self.fused}"
        result: dict[str, Any] = {
            "qkv": linear(parts, self.inputs or hidden, shard=0, bias=self.bias, fused=fused, turned=self.turned, heads=shared),
            "out": linear({f"{at}{self.out}": hidden}, self.heads * v_dim, shard=1, bias=self.out_bias, turned=self.turned),
        }
        if self.low_rank is not None:
            result["low"] = self.low_rank.weights(at, dict(zip("qkv", outputs, strict=True)), self.inputs or hidden, shared)
        if any(self.rows):
            weight = result["qkv"]["weight"]
            views = (
                None if rows is None else TensorView(
                    f"{at}{rows.name}.weight", (source.shape[0] // rows.run * rows.every, hidden), first=rows.first,
                    run=rows.run, every=rows.every,
                )
                for rows, source in zip((*self.rows, None)[: len(weight.sources)], weight.sources, strict=True)
            )  # fmt: skip
            result["qkv"]["weight"] = replace(
                weight, sources=tuple(replace(s, within=v) for s, v in zip(weight.sources, views, strict=True))
            )
        if self.bias and not self.key_bias:
            q, k, v = result["qkv"]["bias"].sources
            result["qkv"]["bias"] = replace(result["qkv"]["bias"], sources=(q, replace(k, absent=True), v))
        if self.out_norm is not None:
            result["out_norm"] = self.out_norm.weights(at)
        if self.norm is not None and self.norm.shared:
            for key, name, heads in (("q_norm", self.norm.q, self.heads), ("k_norm", self.norm.k, self.kv_heads)):
                result[key] = LayerNorm(name, heads * d if self.norm.whole else d, self.norm.eps).weights(at)
        elif self.norm is not None and self.norm.apart:
            for key, name, heads in (("q_norm", self.norm.q, self.heads), ("k_norm", self.norm.k, self.kv_heads)):
                one = Source(f"{at}{name}", (heads, d), heads=heads if key == "k_norm" else 0)
                result[key] = {"weight": Weight((one,), 0, fill="ones")}
        elif self.norm is not None and self.norm.mean:
            for key, name, heads in (("q_norm", self.norm.q, self.heads), ("k_norm", self.norm.k, self.kv_heads)):
                apart = tuple(Source(f"{at}{name.format(i)}.weight", (d,)) for i in range(heads)) if "{}" in name else ()
                one = Source(f"{at}{name}.weight", (heads, d), heads=heads if key == "k_norm" else 0)
                result[key] = {"weight": Weight(apart or (one,), None if apart else 0, fill="ones")}
                if self.norm.biased:
                    result[key]["bias"] = Weight((replace(one, name=f"{at}{name}.bias"),), 0)
        elif self.norm is not None and self.norm.weight:
            widths = (self.heads * d, self.kv_heads * d) if self.norm.whole else (d, d)
            for key, name, size in list(zip(("q_norm", "k_norm"), (self.norm.q, self.norm.k), widths, strict=True))[:projected]:
                result[key] = Norm(name, size, self.norm.eps, self.norm.offset).weights(at)
        if self.sinks:
            result["sinks"] = vector(f"{at}{self.sinks}", self.heads, shard=0)
        if self.relative is not None:
            result["relative"] = Weight((Source(self.relative.name, (self.relative.buckets, self.heads)),), 1, dtype="float32")
        return result


_CONFLICTS: tuple[tuple[Callable[[Attention], bool], str], ...] = (
    (lambda a: bool(a.fused) and (a.keys_as_values or a.reads is not None), "a fused tensor holds q, k and v"),
    (lambda a: bool(a.fused) and not a.key_bias, "a fused tensor has a bias for keys too"),
    (lambda a: a.grouped and (a.gated or not a.fused), "grouped heads require a fused tensor without gates"),
    (
        lambda a: a.low_rank is not None and bool(a.fused or a.gate or a.gated or a.keys_as_values or a.reads is not None),
        "low-rank additions are of separate q, k and v without gates",
    ),
    (
        lambda a: any(a.rows) and (bool(a.fused or a.bias or a.inputs) or a.reads is not None),
        "mixed rows are of q, k and v without biases",
    ),
    (lambda a: bool(a.gate) and (a.gated or bool(a.fused)), "a gate matrix requires separate tensors of q, k and v"),
    (lambda a: (a.softplus or a.gate_heads) and not a.gate, "a gate per head, or with softplus, requires a gate matrix"),
    (
        lambda a: bool(a.clip) and (a.low_rank is not None or a.gated or bool(a.gate) or a.reads is not None),
        "clipping of q, k and v requires projections of all three, without gates and low-rank additions",
    ),
    (lambda a: bool(a.window) and bool(a.chunk), "windows within chunks are not implemented"),
    (lambda a: bool(a.chunk) and not a.causal, "chunks of bidirectional attention are not implemented"),
    (
        lambda a: (
            bool(a.value_dim) and (a.gated or bool(a.gate) or bool(a.fused) or a.keys_as_values or a.value_dim > a.head_dim)
        ),
        "values narrower than keys require separate tensors without gates",
    ),
    (
        lambda a: (
            bool(a.slopes) and (a.relative is not None or a.rope is not None or a.reads is not None or len(a.slopes) != a.heads)
        ),
        "ALiBi requires a slope per head, and no other positions",
    ),
    (
        lambda a: a.norm is not None and a.norm.after and a.norm.whole,
        "a QK-norm over all heads after rotation is not implemented",
    ),
    (
        lambda a: a.relative is not None and (a.rope is not None or (a.causal and bool(a.window or a.chunk or a.sinks))),
        "relative position bias requires attention without rotary positions, and causal attention without a window or sinks",
    ),
)
"""Settings that exclude each other, or that no layer implements together, and the error."""
