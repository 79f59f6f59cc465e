"""Results other than tokens, declared: a vector per sequence, or a number per class. Loads no tensor framework."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.weights import Source, Weight, Weights, vector

POOLING = ("cls", "mean", "last", "max", "mean_sqrt_len", "weightedmean")
CLASSIFIES = ("softmax", "sigmoid", "none")
ACTS = ("none", "tanh", "relu", "gelu", "silu", "sigmoid")
"""Of dense layers after pooling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """A number per class of a pooled hidden state: out(norm(act(dense(x)))), or out(x) where there is no dense."""

    labels: tuple[str, ...]
    activation: str = "softmax"
    """The activation that turns the numbers into probabilities."""
    dense: str = ""
    """"" = none."""
    dense_bias: bool = True
    act: str = "tanh"
    """After dense: one of ACTS."""
    norm: str = ""
    """Layer norm after dense and act, without bias; "" = none."""
    eps: float = 1e-5
    out: str = "classifier"
    bias: bool = True
    """Of out."""
    tokens: tuple[int, ...] = ()
    """Out is made of an output matrix: of its rows for these tokens."""
    head: str = ""
    """That matrix's tensor, in full."""
    vocab: int = 0
    """Its rows."""
    shift: float = 0.0
    """Subtracted from each number before its activation."""
    difference: bool = False
    """The one number is the second token's less the first's: its sigmoid equals the softmax of both."""

    def __post_init__(self) -> None:
        if self.activation not in CLASSIFIES:
            raise ValueError(f"Classes: unknown {self.activation!r}; supported: {', '.join(CLASSIFIES)}")
        if self.act not in ACTS:
            raise ValueError(f"Classes: unknown {self.act!r}; supported: {', '.join(ACTS)}")

    def weights(self, at: str, hidden: int) -> Weights:
        if self.tokens:
            rows = tuple(Source(self.head, (1, hidden), first=token, rows=self.vocab) for token in self.tokens)
            return {"out": {"weight": Weight(rows)}}
        out: dict[str, Weights] = {"out": _matrix(f"{at}{self.out}", len(self.labels), hidden, self.bias)}
        if self.dense:
            out["dense"] = _matrix(f"{at}{self.dense}", hidden, hidden, self.dense_bias)
        if self.norm:
            out["norm"] = {"weight": vector(f"{at}{self.norm}.weight", hidden, fill="ones")}
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Lexical:
    """A weight per word of the vocabulary, of each token: log(1 + relu(out(norm(act(dense(x)))))). Of a sequence, the largest
    of each. Out is the embedding."""

    dense: str
    norm: str
    bias: str
    """Of out: the tensor's name."""
    table: str
    """The embedding's."""
    vocab: int
    eps: float = 1e-12
    act: str = "gelu"

    def weights(self, at: str, hidden: int) -> Weights:
        out = {"weight": Weight((Source(f"{at}{self.table}.weight", (self.vocab, hidden)),))}
        norm = {each: vector(f"{at}{self.norm}.{each}", hidden) for each in ("weight", "bias")}
        return {
            "dense": _matrix(f"{at}{self.dense}", hidden, hidden, True), "norm": norm,
            "out": out | {"bias": vector(f"{at}{self.bias}", self.vocab)},
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer and an activation after pooling, from separate files: a Dense module of sentence-transformers."""

    folder: str
    """Of the model's, that holds the files. "": they are the model's own."""
    inputs: int
    outputs: int
    bias: bool = True
    act: str = "tanh"
    name: str = ""
    """In the model's own files."""

    def weights(self) -> Weights:
        return _matrix(self.name or f"{self.folder}/linear", self.outputs, self.inputs, self.bias)


def _matrix(name: str, outputs: int, inputs: int, bias: bool) -> dict[str, Weight]:
    result = {"weight": Weight((Source(f"{name}.weight", (outputs, inputs)),))}
    return result | ({"bias": vector(f"{name}.bias", outputs)} if bias else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftedSource:
    """The decoder's prompt, of a text-to-text model that pools: the source shifted right, up to its last end token."""

    end: int
    """The id of this token. The vector is the decoder's state there."""
    start: int | None
    """The decoder's first token. None: the source's last, a language for instance."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """A tail that gives a vector per sequence rather than a token, or a number per class."""

    mode: str
    """cls: the first token's hidden state. last: the last token's. max: the largest of each value. mean: the mean of all n.
    mean_sqrt_len: that times sqrt(n). weightedmean: the i-th token's counts i times."""
    activate: bool = True
    """Does `activation` apply where a request does not say? By the client, after the step."""
    dimensions: tuple[int, ...] | None = None
    """Sizes to which vectors may be truncated, because the model was trained so. None: only the full size. (): any."""
    classes: Classes | None = None
    """The classifier of the vector, if the vector is not the result itself."""
    dense: tuple[Dense, ...] = ()
    """Modules for a vector that is the result, applied in sequence."""
    prompts: tuple[tuple[str, str], ...] = ()
    """(use of a text, prefix of the text), for requests that name the use."""
    form: str = ""
    """How the model wants pairs of texts written: a name of `text.pair_forms.FORMS`. "" = as its tokenizer joins them."""
    each: bool = False
    """Was it trained to give a result per token, and none of the sequence?"""
    step_tag: int | None = None
    """Default of requests for results per token: only those of this id are returned. None: all."""
    columns: tuple[int, ...] = ()
    """Default of requests: numbers of a token's result that are returned. (): all."""
    lexical: Lexical | None = None
    """Word weights computed for every token before pooling."""
    encoded: bool = False
    """The result of an image is the vector of its encoder. Such a prompt is its placeholder."""
    transcribes: bool = False
    """The result is the transcript of a clip (`models.spec.transcript`)."""
    speaks: bool = False
    """The result is the speech of `ModelSpec.voice`, and no step is run."""
    fills: bool = False
    """Texts are filled up with padding tokens, which other tokens see, to the longest length."""
    source: ShiftedSource | None = None
    """Of text-to-text models."""

    def __post_init__(self) -> None:
        if self.mode not in POOLING:
            raise ValueError(f"Pooling: unknown {self.mode!r}; supported: {', '.join(POOLING)}")

    @property
    def activation(self) -> str:
        """The result's activation after the step. A vector is divided by its length."""
        return "normalise" if self.classes is None else self.classes.activation
