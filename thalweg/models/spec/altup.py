"""Several residual streams of which layers compute one (alternating updates, Baykal et al. 2023), and a low-rank path parallel
to attention (learned augmented residual layer)."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.spec.norm import Norm
from thalweg.models.spec.perlayer import LayerInput, whole
from thalweg.models.weights import Source, Weight, Weights, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """The streams of a model: the embedding and its projections enter, and the mean of the outputs is the result. All but the
    first are scaled to the magnitude of the first."""

    count: int
    enter: str = "altup_projections.{}"
    leave: str = "altup_unembed_projections.{}"

    def __post_init__(self) -> None:
        if self.count < 2:
            raise ValueError("Streams: there are several, or the model has none")

    def weights(self, at: str, hidden: int) -> Weights:
        return {
            key: {i: whole(f"{at}{name.format(i)}", hidden, hidden) for i in range(self.count - 1)}
            for key, name in (("enter", self.enter), ("leave", self.leave))
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AltUp:
    """The operations around a layer: all streams are predicted from each other, the layer computes the active one, and the
    result corrects all. The layer's input is then added to all but the first."""

    streams: int
    active: int
    eps: float
    input: LayerInput
    scaled: bool = True
    """The corrected stream is multiplied by a vector before it gates the layer's input."""
    name: str = "altup"

    def weights(self, at: str, hidden: int) -> Weights:
        own, n = f"{at}{self.name}.", self.streams
        shapes = {"router": ("modality_router", (n, hidden)), "predict": ("prediction_coefs", (n * n, n)),
                  "correct": ("correction_coefs", (n, n))}  # fmt: skip
        return {
            **{k: {"weight": Weight((Source(f"{own}{name}.weight", shape),))} for k, (name, shape) in shapes.items()},
            "norm": Norm("router_norm", hidden, self.eps).weights(own),
            "scale": {"weight": vector(f"{own}correct_output_scale", hidden, fill="ones")},
            "input": self.input.weights(at, hidden),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Laurel:
    """y + norm(right(left(y))) of the mixer's input. It is added together with the mixer's output, and the sum is multiplied
    by the square root of 1/2."""

    rank: int
    eps: float
    name: str = "laurel"

    def weights(self, at: str, hidden: int) -> Weights:
        at = f"{at}{self.name}."
        return {
            "left": whole(f"{at}linear_left", self.rank, hidden),
            "right": whole(f"{at}linear_right", hidden, self.rank),
            "norm": Norm("post_laurel_norm", hidden, self.eps).weights(at),
        }
