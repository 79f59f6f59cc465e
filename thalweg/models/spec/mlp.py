"""Feed-forward parts, with and without a gate."""

from __future__ import annotations

from dataclasses import dataclass, replace

from thalweg.models.spec.norm import LayerNorm
from thalweg.models.weights import Weights, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class MLP:
    """down(act(gate(x)) * up(x))."""

    inner: int
    act: str = "silu"
    """As `ops.act_and_mul` names it, or swiglu_oai, as `ops.experts` has it."""
    bias: bool = False
    name: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    fused: str = ""
    """The tensor that holds gate and up; "" = one tensor each."""
    gate_scale: float = 1.0
    """Of the gate, before act."""
    turned: bool = False
    """Matrices are stored [inputs, outputs]."""
    swapped: bool = False
    """That tensor holds up first."""
    cut: float = 0.0
    """act(gate) is clipped to at most this, and up to at most this magnitude; 0 = no clipping. act must then be silu."""
    clamp: float = 0.0
    """The gate is clipped to at most this before act, and up to at most this magnitude; 0 = no clipping. Requires silu."""
    down_bias: bool | None = None
    """Of down only; None = as in `bias`."""

    def __post_init__(self) -> None:
        if (self.cut or self.clamp) and (self.act != "silu" or (self.cut and self.clamp)):
            raise ValueError("MLP: cut and clamp require silu, and exclude each other")

    @property
    def width(self) -> int:
        """Inner values that one token's step holds."""
        return self.inner

    def weights(self, at: str, hidden: int) -> Weights:
        at = f"{at}{self.name}."
        parts = {f"{at}{self.gate}": self.inner, f"{at}{self.up}": self.inner}
        result = linear(parts, hidden, shard=0, bias=self.bias, turned=self.turned,
                      fused=f"{at}{self.fused}" if self.fused else "")  # fmt: skip
        if self.swapped:  # the layer wants the gate's rows first
            result = {key: replace(w, sources=w.sources[::-1]) for key, w in result.items()}
        down_bias = self.bias if self.down_bias is None else self.down_bias
        down = linear({f"{at}{self.down}": hidden}, self.inner, shard=1, bias=down_bias, turned=self.turned)
        return {"gate_up": result, "down": down}


@dataclass(frozen=True, slots=True, kw_only=True)
class UngatedMLP:
    """down(act(up(x)))."""

    inner: int
    norm: LayerNorm | None = None
    """Of what `down` reads. Ranks gather it for that."""
    act: str = "gelu"
    """As `ops.activation` names it."""
    bias: bool = False
    name: str = "mlp"
    """"" = its matrices are the layer's own."""
    up: str = "fc1"
    down: str = "fc2"
    turned: bool = False
    """Matrices are stored [inputs, outputs]."""

    @property
    def width(self) -> int:
        return self.inner

    def weights(self, at: str, hidden: int) -> Weights:
        at = f"{at}{self.name}." if self.name else at
        return {
            "up": linear({f"{at}{self.up}": self.inner}, hidden, shard=0, bias=self.bias, turned=self.turned),
            "down": linear({f"{at}{self.down}": hidden}, self.inner, shard=1, bias=self.bias, turned=self.turned),
            **({} if self.norm is None else {"norm": self.norm.weights(at)}),
        }
