"""Layers whose keys, values and outputs are smoothed by short convolutions (Inkling), each of which is added to its input.
Their last inputs are the state of a sequence, which one mixer of the layer keeps for all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from thalweg.hal.kv import RowsSpec, StateSpec, state_part
from thalweg.models.spec.mlp import MLP
from thalweg.models.spec.moe import MoE
from thalweg.models.spec.norm import Norm
from thalweg.models.weights import Source, TensorView, Weight, Weights, attach_views, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTaps:
    """A mixer that only keeps inputs of convolutions: of keys and values, of attention's output, and of that of the
    feed-forward part."""

    kv: int
    """Channels of keys and values together."""
    hidden: int
    taps: int
    rope: ClassVar[None] = None

    @property
    def widths(self) -> tuple[int, int, int]:
        return 1, 1, self.kv

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> StateSpec:
        sizes = {"kv": self.kv // ranks, "mixer": self.hidden, "ffn": self.hidden}
        return StateSpec(tuple(state_part(f"taps-{name}", (self.taps - 1, n), dtype) for name, n in sizes.items()))

    def weights(self, at: str, hidden: int) -> Weights:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceAttention:
    """Attention with logits of distances (`ops.distance_attention`), after `KeptTaps`. Keys and values are smoothed, queries
    and keys normed per head, and the output is smoothed."""

    heads: int
    kv_heads: int
    head_dim: int
    taps: int
    rank: int
    """Values of a head by which the profiles of distances are weighed."""
    reach: int
    """Distances with a logit."""
    eps: float
    window: int = 0
    """A token sees itself and the window - 1 tokens before it; 0 = all."""
    grows: tuple[float, int] | None = None
    """(alpha, n): queries and logits at position p are multiplied by 1 + alpha * log(max(1, (p + 1) / n))."""
    name: str = "self_attn"
    smooth: str = "attn_sconv"
    rope: ClassVar[None] = None

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.heads, self.kv_heads, self.head_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> RowsSpec:
        size = self.kv_heads * self.head_dim // ranks
        return RowsSpec((size, size), dtype, window=self.window if self.window < max_len else 0)

    def weights(self, at: str, hidden: int) -> Weights:
        own, d = f"{at}{self.name}.", self.head_dim
        parts = {"q": self.heads * d, "k": self.kv_heads * d, "v": self.kv_heads * d, "r": self.heads * self.rank}
        sources = tuple(Source(f"{own}{part}_sconv.conv1d.weight", (self.kv_heads * d, 1, self.taps)) for part in ("k", "v"))
        return {
            "in": linear({f"{own}{part}_proj": n for part, n in parts.items()}, hidden, shard=0),
            "conv": {"weight": Weight(sources, 0)},
            **{f"{part}_norm": Norm(f"{part}_norm", d, self.eps).weights(own) for part in ("q", "k")},
            "profiles": {"weight": Weight((Source(f"{own}rel_logits_proj.proj", (self.rank, self.reach)),))},
            "out": linear({f"{own}o_proj": hidden}, self.heads * d, shard=1),
            "smooth": smoothing(f"{at}{self.smooth}", hidden, self.taps),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothedFFN:
    """A feed-forward part with a smoothed output, in a layer with `KeptTaps`."""

    ffn: MLP | SinkMoE
    taps: int
    scale: str = ""
    """The tensor of one number that multiplies the part's output; "" = none."""
    joined: str = ""
    """The tensor in which rows of gate and up of an MLP alternate; "" = one tensor each."""
    smooth: str = "mlp_sconv"

    @property
    def width(self) -> int:
        return self.ffn.width

    def weights(self, at: str, hidden: int) -> Weights:
        inner: dict[str, Any] = dict(self.ffn.weights(at, hidden))
        if self.joined:
            name, rows = f"{at}{self.ffn.name}.{self.joined}", self.ffn.inner
            views = [TensorView(name, (2 * rows, hidden), first=i, step=2) for i in range(2)]
            inner["gate_up"] = {"weight": attach_views(inner["gate_up"]["weight"], views)}
        result: dict[str, Any] = {"ffn": inner, "smooth": smoothing(f"{at}{self.smooth}", hidden, self.taps)}
        if self.scale:
            result["scale"] = {"weight": Weight((Source(f"{at}{self.scale}", (1,)),), dtype="float32")}
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkMoE(MoE):
    """An MoE whose last `always` experts are in every token's selection. Weights are shares of the sigmoids of all selected
    ones, so that these take some of the others'. Their matrices are in separate tensors."""

    always: int
    sink_parts: tuple[str, str, str] | tuple[str, str]
    """Tensors of gate, up and down of these experts, or of gate and up with alternate rows, and down."""
    gain: str
    """The tensor of one number that multiplies all weights."""

    def weights(self, at: str, hidden: int) -> Weights:
        result: dict[str, Any] = dict(MoE.weights(self, at, hidden))
        own = f"{at}{self.name}."
        scored = Source(f"{own}{self.correction}", (self.experts - self.always,))
        result["correction"] = {"bias": Weight((scored,), fill="zeros", dtype="float32")}
        result["gain"] = {"weight": Weight((Source(f"{own}{self.gain}", (1,)),), fill="ones", dtype="float32")}
        for key, outputs, inputs in (("gate_up", 2 * self.inner, hidden), ("down", hidden, self.inner)):
            weight: Weight = result[key]["weight"]
            run = len(weight.sources) // self.experts
            views = [
                self._view(own, source.within, *divmod(i, run), key == "down", outputs, inputs)
                for i, source in enumerate(weight.sources)
                if source.within is not None
            ]
            result[key] = {"weight": attach_views(weight, views)}
        return result

    def _view(
        self, own: str, view: TensorView, expert: int, part: int, down: bool, outputs: int, inputs: int
    ) -> TensorView:  # fmt: skip
        """Where a matrix of an expert is stored. view: as if one tensor had all experts. part: 0 of gate, 1 of up."""
        selected = self.experts - self.always
        if expert < selected:
            return replace(view, shape=(selected, *view.shape[1:]))
        at = expert - selected
        if down:
            return TensorView(f"{own}{self.sink_parts[-1]}", (self.always, outputs, inputs), at)
        if len(self.sink_parts) == 2:
            return TensorView(f"{own}{self.sink_parts[0]}", (self.always, outputs, inputs), at, first=part, step=2)
        return TensorView(f"{own}{self.sink_parts[part]}", (self.always, self.inner, inputs), at)


def smoothing(at: str, channels: int, taps: int) -> Weights:
    return {"weight": Weight((Source(f"{at}.conv1d.weight", (channels, 1, taps)),))}
