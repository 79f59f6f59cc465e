"""Per-layer embeddings: a separate input for each layer, computed from token ids, and added at a layer's end."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.spec.norm import Norm
from thalweg.models.weights import Source, Weight, Weights, matrices, vector


def whole(name: str, outputs: int, inputs: int) -> dict[str, Weight]:
    """A matrix that every rank holds whole: each rank needs its output."""
    return {"weight": Weight((Source(f"{name}.weight", (outputs, inputs)),), role="linear")}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInputs:
    """A table of rows [layers * width], and a projection of embedded tokens to as many values, each layer's part of which is
    normed. The two are added, and multiplied by a half's root. Without a table the input is the projection."""

    rows: int
    """Of the table. A token beyond them has the first. 0: there is no table."""
    layers: int
    width: int
    eps: float
    pad: int = 0
    """Token id of the row for positions with a given vector rather than an embedding."""
    table: str = "embed_tokens_per_layer"
    projection: str = "per_layer_model_projection"
    norm: str = "per_layer_projection_norm"

    @property
    def size(self) -> int:
        return self.layers * self.width

    def weights(self, at: str, hidden: int) -> Weights:
        table = {f"{at}{self.table}": self.rows}
        return {
            **({"table": {"weight": matrices(table, self.size, shard=1, role="embedding")}} if self.rows else {}),
            "projection": whole(f"{at}{self.projection}", self.size, hidden),
            "norm": Norm(self.norm, self.width, self.eps).weights(at),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInput:
    """norm(up(act(gate(x)) * the layer's input))."""

    width: int
    eps: float
    act: str = "gelu_tanh"
    """As `ops.act_and_mul` names it."""
    gate: str = "per_layer_input_gate"
    up: str = "per_layer_projection"
    norm: str = "post_per_layer_input_norm"

    def weights(self, at: str, hidden: int) -> Weights:
        return {
            "gate": whole(f"{at}{self.gate}", self.width, hidden),
            "up": whole(f"{at}{self.up}", hidden, self.width),
            "norm": Norm(self.norm, hidden, self.eps).weights(at),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerEnding:
    """The end of a layer for the residual stream: its input is added, then all of it multiplied by one number."""

    input: LayerInput | None = None
    scalar: str = ""
    """The tensor of that number; "" = none."""

    def weights(self, at: str, hidden: int) -> Weights:
        result: dict[str, Weights] = {} if self.input is None else {"input": self.input.weights(at, hidden)}
        return result | ({"scalar": {"weight": vector(f"{at}{self.scalar}", 1, fill="ones")}} if self.scalar else {})
