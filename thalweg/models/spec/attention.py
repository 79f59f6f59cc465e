"""Attention that keeps keys and values of every token, or of a window."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from thalweg.hal.attention import AttnSpec
from thalweg.models.spec.norm import HeadNorm, Norm
from thalweg.models.spec.rope import Rope
from thalweg.models.weights import Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Self-attention with grouped queries."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope | None = None
    """None: positions are not told."""
    window: int = 0
    """Tokens a token sees, itself included; 0 = all before it."""
    causal: bool = True
    """False: a token sees its whole sequence, which must be in one step; keys and values are not kept (an encoder)."""
    scale: float = 0.0
    """Of the scores; 0 = head_dim ** -0.5."""
    softcap: float = 0.0
    norm: HeadNorm | None = None
    bias: bool = False
    """Of q, k and v."""
    key_bias: bool = True
    """False: where q and v have a bias, k has none."""
    out_bias: bool = False
    gated: bool = False
    """The projection of q gives each head's q, then as many values whose sigmoids its output is multiplied by."""
    name: str = "self_attn"
    parts: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj")
    fused: str = ""
    """The tensor that holds q, k and v, one after the other; "" = one tensor each."""
    grouped: bool = False
    """The fused tensor holds of each head of keys in turn its heads of q, its k and its v."""
    out: str = "o_proj"
    turned: bool = False
    """Matrices are stored [inputs, outputs]."""
    sinks: str = ""
    """The tensor of a logit per head that joins the softmax's denominator; "" = none."""
    grows: tuple[float, int] | None = None
    """(beta, n): q at position p is multiplied by 1 + beta * log(1 + floor(p / n))."""

    def __post_init__(self) -> None:
        if self.grouped and (self.gated or not self.fused):
            raise ValueError("Attention: heads are grouped in a fused tensor, and without gates")
        if not self.key_bias and self.fused:
            raise ValueError("Attention: a fused tensor has a bias for keys too")
        if self.norm is not None and self.norm.after and self.norm.whole:
            raise ValueError("Attention: this version has no norm over all heads after rotation")
        if self.window and not self.causal:
            raise ValueError("Attention: this version has no windows of tokens that see both ways")

    @property
    def widths(self) -> tuple[int, int, int]:
        """Heads, heads of keys and values, values of a head: what a step's temporaries are counted by."""
        return self.heads, self.kv_heads, self.head_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> AttnSpec:
        """What the attention backend is asked for, on one of `ranks`, where no sequence is longer than max_len: a window
        that no sequence outgrows hides nothing."""
        if not self.causal:
            return AttnSpec(
                heads=self.heads // ranks, kv_heads=self.kv_heads // ranks, head_dim=self.head_dim,
                scale=self.scale or self.head_dim**-0.5, dtype=dtype, kind="encoder", softcap=self.softcap,
            )  # fmt: skip
        window = self.window if self.window < max_len else 0
        return AttnSpec(
            heads=self.heads // ranks, kv_heads=self.kv_heads // ranks, head_dim=self.head_dim,
            scale=self.scale or self.head_dim**-0.5, dtype=dtype, kind="window" if window else "full", window=window,
            softcap=self.softcap, kv_dtype=kv_dtype, sinks=bool(self.sinks),
        )  # fmt: skip

    def weights(self, at: str, hidden: int) -> Weights:
        at, d = f"{at}{self.name}.", self.head_dim
        outputs = (self.heads * d * (2 if self.gated else 1), self.kv_heads * d, self.kv_heads * d)
        parts, fused = {f"{at}{part}": n for part, n in zip(self.parts, outputs, strict=True)}, ""
        if self.grouped:
            parts = {f"{at}{self.fused}": sum(outputs)}
        elif self.fused:
            fused = f"{at}{self.fused}"
        made: dict[str, Any] = {
            "qkv": linear(parts, hidden, shard=0, bias=self.bias, fused=fused, turned=self.turned),
            "out": linear({f"{at}{self.out}": hidden}, self.heads * d, shard=1, bias=self.out_bias, turned=self.turned),
        }
        if self.bias and not self.key_bias:
            q, k, v = made["qkv"]["bias"].sources
            made["qkv"]["bias"] = replace(made["qkv"]["bias"], sources=(q, replace(k, absent=True), v))
        if self.norm is not None:
            widths = (self.heads * d, self.kv_heads * d) if self.norm.whole else (d, d)
            for key, name, size in zip(("q_norm", "k_norm"), (self.norm.q, self.norm.k), widths, strict=True):
                made[key] = Norm(name, size, self.norm.eps, self.norm.offset).weights(at)
        if self.sinks:
            made["sinks"] = vector(f"{at}{self.sinks}", self.heads, shard=0)
        return made
