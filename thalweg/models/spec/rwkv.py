"""Parts of RWKV: time mixing of RWKV-4 and RWKV-7, and channel mixing. Each reads a token and the one before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from thalweg.hal.kv import KVLayout, StateSpec, state_part
from thalweg.models.weights import Source, Weight, Weights, linear, table_source, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelMix:
    """value(relu(key(m)) ** 2), where m mixes the token's input with the last one. With a `receptance`, its sigmoid multiplies
    the result."""

    inner: int
    name: str = "ffn"
    mixes: tuple[str, ...] = ("x_k",)
    """Weights of the mixtures that key, and receptance, read."""
    mix_dims: int = 1
    """Dimensions of these tensors."""
    receptance: str = ""
    """"" = none."""
    width: int
    """Channels of the input."""
    rope: ClassVar[None] = None

    @property
    def widths(self) -> tuple[int, int, int]:
        """As in attention: the sizes of a step's temporaries."""
        return self.inner, 2 * self.width, 1

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> StateSpec:
        """The last input."""
        return StateSpec((_last_input(self.width, dtype),))

    def weights(self, at: str, hidden: int) -> Weights:
        at = f"{at}{self.name}."
        result: dict[str, Any] = {
            "mix": _mixtures(at, self.mixes, hidden, self.mix_dims),
            "shift": _last_tap(at, hidden),
            "key": linear({f"{at}key": self.inner}, hidden, shard=None),
            "value": linear({f"{at}value": hidden}, self.inner, shard=None),
        }
        if self.receptance:
            result["receptance"] = linear({f"{at}{self.receptance}": hidden}, hidden, shard=None)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageMix:
    """RWKV-4's time mixing: out(sigmoid(receptance) * average), where the average is over the values so far
    (`ops.decaying_average`)."""

    inner: int
    """Channels."""
    width: int
    """Channels of the input."""
    name: str = "attention"
    rope: ClassVar[None] = None

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.inner, 3 * self.inner, 1

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> StateSpec:
        """The last input, and three numbers per channel."""
        return StateSpec((_last_input(self.width, dtype), state_part("average", (3, self.inner), "float32")))

    def weights(self, at: str, hidden: int) -> Weights:
        at, n = f"{at}{self.name}.", self.inner
        names = ("key", "value", "receptance")
        return {
            "mix": _mixtures(at, tuple(f"time_mix_{name}" for name in names), hidden, 3),
            "shift": _last_tap(at, hidden),
            **{name: linear({f"{at}{name}": n}, hidden, shard=None) for name in names},
            "out": linear({f"{at}output": hidden}, n, shard=None),
            "decay": vector(f"{at}time_decay", n, dtype="float32"),
            "bonus": vector(f"{at}time_first", n, dtype="float32"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaMix:
    """RWKV-7's time mixing (`ops.general_delta_rule`). Decay, learning rate, gate, and the share of the first layer's values
    come from projections of low rank."""

    heads: int
    head_dim: int
    ranks: tuple[int, int, int, int]
    """Of decay, learning rate, gate and values."""
    eps: float
    """Of the norm of each head's output."""
    first: bool = False
    """Of the first layer: later ones mix its values with theirs."""
    name: str = "attn"
    rope: ClassVar[None] = None

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.heads, 8 * self.heads, self.head_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> StateSpec:
        """The last input, and a matrix per head."""
        shape = (self.heads, self.head_dim, self.head_dim)
        return StateSpec((_last_input(self.inner, dtype), state_part("delta", shape, "float32")))

    def weights(self, at: str, hidden: int) -> Weights:
        at, n = f"{at}{self.name}.", self.inner
        low = dict(zip("wagv", self.ranks, strict=True))
        if self.first:
            del low["v"]
        return {
            "mix": _mixtures(at, tuple(f"x_{part}" for part in "rwkvag"), hidden, 3), "shift": _last_tap(at, hidden),
            **{part: linear({f"{at}{part}_proj": n}, hidden, shard=None) for part in "rkv"},
            "out": linear({f"{at}o_proj": hidden}, n, shard=None),
            "low": {
                part: {
                    "down": linear({f"{at}{part}_lora.lora.0": rank}, hidden, shard=None),
                    "up": linear({f"{at}{part}_lora.lora.2": n}, rank, shard=None, bias=part != "g"),
                }
                for part, rank in low.items()
            },
            "key_scale": vector(f"{at}k_k", n, dtype="float32"), "key_rate": vector(f"{at}k_a", n, dtype="float32"),
            "bonus": Weight((Source(f"{at}r_k", (self.heads, self.head_dim)),), dtype="float32"),
            "norm": {
                "weight": vector(f"{at}g_norm.weight", n, fill="ones", dtype="float32"),
                "bias": vector(f"{at}g_norm.bias", n, dtype="float32"),
            },
        }  # fmt: skip


def _last_input(width: int, dtype: str) -> KVLayout:
    return state_part("conv", (1, width), dtype)


def _mixtures(at: str, names: tuple[str, ...], hidden: int, dims: int) -> Weight:
    """A weight per channel for each of several mixtures, one after the other."""
    return Weight(tuple(Source(f"{at}{name}", (1,) * (dims - 1) + (hidden,)) for name in names))


def _last_tap(at: str, width: int) -> Weight:
    """A convolution over two tokens that reads the first. No file has it."""
    return Weight((table_source(f"{at}shift", width, 1, 2),))
