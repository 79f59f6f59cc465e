"""What a model gives in place of tokens, declared: a vector per sequence, or a number per class. Loads no tensor framework."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.weights import Source, Weight, Weights, vector

POOLING = ("cls", "mean", "last")
CLASSIFIES = ("softmax", "sigmoid", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """A number per class of a pooled hidden state: out(tanh(dense(x))), or out(x) where there is no dense."""

    labels: tuple[str, ...]
    activation: str = "softmax"
    """What makes probabilities of the numbers."""
    dense: str = ""
    """"" = none."""
    out: str = "classifier"
    bias: bool = True
    """Of out."""

    def __post_init__(self) -> None:
        if self.activation not in CLASSIFIES:
            raise ValueError(f"Classes: {self.activation!r} is none of {', '.join(CLASSIFIES)}")

    def weights(self, at: str, hidden: int) -> Weights:
        def matrix(name: str, outputs: int, bias: bool) -> dict[str, Weight]:
            made = {"weight": Weight((Source(f"{at}{name}.weight", (outputs, hidden)),))}
            return made | ({"bias": vector(f"{at}{name}.bias", outputs)} if bias else {})

        out = {"out": matrix(self.out, len(self.labels), self.bias)}
        return out | ({"dense": matrix(self.dense, hidden, True)} if self.dense else {})


@dataclass(frozen=True, slots=True)
class Pooling:
    """A tail that gives a vector per sequence in place of a token, or a number per class."""

    mode: str
    """cls: the first token's hidden state. mean: the mean of all. last: the last token's."""
    activate: bool = True
    """Does `activation` apply where a request does not say? By the client, after the step."""
    dimensions: tuple[int, ...] | None = None
    """Sizes that vectors may be cut to, because the model was trained so. None: one size alone. (): any."""
    classes: Classes | None = None
    """What is made of the vector, where that is not the answer itself."""

    def __post_init__(self) -> None:
        if self.mode not in POOLING:
            raise ValueError(f"Pooling: {self.mode!r} is none of {', '.join(POOLING)}")

    @property
    def activation(self) -> str:
        """What may become of a result after the step: a vector is divided by its length."""
        return "normalise" if self.classes is None else self.classes.activation
