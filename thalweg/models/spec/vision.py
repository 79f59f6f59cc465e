"""Encoders of images: patches in, a vector for each placeholder of the prompt out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from thalweg.models.spec.latent_reader import LatentReaderSpec
from thalweg.models.spec.norm import AnyNorm, LayerNorm
from thalweg.models.spec.perceiver import PerceiverSpec
from thalweg.models.spec.qformer import QFormerSpec
from thalweg.models.spec.query_projector import QueryProjectorSpec
from thalweg.models.spec.resampler import ResamplerSpec
from thalweg.models.spec.window_pool import WindowPoolSpec
from thalweg.models.spec.window_qformer import WindowQFormersSpec
from thalweg.models.weights import Source, TensorView, Weight, Weights, linear, vector

if TYPE_CHECKING:
    from thalweg.models.spec.model import Layer

AnyResampler = (
    ResamplerSpec | QueryProjectorSpec | QFormerSpec | PerceiverSpec | WindowPoolSpec | WindowQFormersSpec | LatentReaderSpec
)
"""As many vectors of each view, whatever its size, or one of each window. `weights` gets the language model's size of
vectors."""


@dataclass(frozen=True, slots=True)
class ProjectorLayer:
    """One linear layer of a projector."""

    name: str
    inputs: int
    outputs: int
    bias: bool = False
    act: str = ""
    """After it, as `ops.activation` names it, or "softmax"; "" = none."""
    zeros: int = 0
    """Of `softmax`: zeros behind its outputs, for further inputs of the next layer."""
    turned: bool = False
    """Stored [inputs, outputs]."""
    gated: bool = False
    """The second half of its outputs goes through `act`, and is multiplied by the first."""
    up: str = ""
    """A parallel matrix with as many outputs. It multiplies the output of `act`; "" = none."""
    limit: float = 0.0
    """With `up`: the input of `act` is clipped to at most this, and the output of `up` to at most this magnitude; 0 = no
    clipping."""
    grid: int = 0
    """Of squares with so many rows and columns of vectors: sines of the column, then of the row, are added to each vector; 0 =
    none."""
    norm: AnyNorm | None = None
    """Before `act`."""
    kernel: tuple[int, ...] = ()
    """It is stored as a convolution over the concatenated vectors, of this shape for each output; () = as a matrix."""
    copies: int = 1
    """It reads so many copies of the last layer's output, concatenated."""
    parts: int = 1
    """Of the first layer: it is applied to each of so many parts of the `group`, whose outputs are joined as the group's are. A
    part without patches yields zeros."""

    def weights(self, root: str) -> Weights:
        parts = {f"{root}{name}": self.outputs for name in (self.name, self.up) if name}
        result: dict[str, Any] = linear(parts, self.inputs, shard=0, bias=self.bias, turned=self.turned)
        if self.kernel:
            result["weight"] = convolution(f"{root}{self.name}", self.outputs, self.kernel)
        return result | ({"norm": self.norm.weights(root)} if self.norm is not None else {})


@dataclass(frozen=True, slots=True)
class TrailingRows:
    """The last rows of a stored table."""

    stored: int
    """Rows of the table."""
    count: int

    def weight(self, name: str, columns: int) -> Weight:
        """f[count, columns] of the table of this name."""
        view = TensorView(f"{name}.weight", (self.stored, columns), first=self.stored - self.count)
        return Weight((Source(f"{name}.last", (self.count, columns), within=view),))


def convolution(name: str, outputs: int, kernel: tuple[int, ...]) -> Weight:
    """The matrix that it is where no two places overlap."""
    view = TensorView(f"{name}.weight", (outputs, *kernel), flat=True)
    return Weight((Source(f"{name}.flat", (outputs, prod(kernel)), within=view),), 0, "linear")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectorSpec:
    """From the encoder's vectors to the language model's: `group` neighbours joined, then linear layers."""

    root: str
    steps: tuple[ProjectorLayer, ...]
    group: int = 1
    padded: bool = False
    """-1 in place of a patch means zeros."""
    join: Literal["rows", "channels", "mean"] = "rows"
    """rows: vectors are concatenated. channels: each channel of all vectors, then the next. mean: their mean."""
    learned: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """(name, stored shape) of learned vectors behind the concatenated ones, which pass through the layers too."""
    entries: tuple[int, ...] = ()
    """Of each of these: the number of layers behind which it stands there, ascending; () = none."""
    before: AnyNorm | None = None
    """Of each vector."""
    after: tuple[AnyNorm, ...] = ()
    """Of the concatenated vectors, in turn."""
    leave: AnyNorm | None = None
    """Of the result."""

    def weights(self) -> Weights:
        result: dict[str, Any] = {
            "steps": {i: step.weights(self.root) for i, step in enumerate(self.steps)},
        }
        if self.learned:
            result["learned"] = {
                i: Weight((Source(f"{self.root}{name}", shape),)) for i, (name, shape) in enumerate(self.learned)
            }
        if self.before is not None:
            result["before"] = self.before.weights(self.root)
        if self.after:
            result["after"] = {i: norm.weights(self.root) for i, norm in enumerate(self.after)}
        if self.leave is not None:
            result["leave"] = self.leave.weights(self.root)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPoolSpec:
    """One vector per image: a learned query attends to its patches, and x + mlp(norm(x)) follows."""

    name: str
    hidden: int
    heads: int
    inner: int
    act: str
    norm: LayerNorm

    def weights(self, root: str) -> Weights:
        at, n = f"{root}{self.name}", self.hidden
        probe = Source(f"{at}probe.row", (1, n), within=TensorView(f"{at}probe", (1, 1, n), at=0))
        return {
            "probe": Weight((probe,)),
            "qkv": {
                "weight": Weight((Source(f"{at}attention.in_proj_weight", (3 * n, n)),)),
                "bias": vector(f"{at}attention.in_proj_bias", 3 * n),
            },
            "out": linear({f"{at}attention.out_proj": n}, n, shard=0, bias=True),
            "norm": self.norm.weights(root),
            "up": linear({f"{at}mlp.fc1": self.inner}, n, shard=0, bias=True),
            "down": linear({f"{at}mlp.fc2": n}, self.inner, shard=0, bias=True),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSpec:
    """Layers over the patches of an image, all of which see each other, or those of their window or tile."""

    hidden: int
    layers: tuple[Layer, ...]
    projector: ProjectorSpec
    patch: str
    """The convolution that embeds patches. It is a product, because no two patches overlap."""
    kernel: tuple[int, ...]
    """Channels, (pictures,) rows and columns of a patch."""
    patch_bias: bool = False
    video: tuple[str, int] = ("", 0)
    """The matrix that embeds patches of several frames, and the number of their values. It has no bias."""
    root: str = "model.vision_tower."
    layer: str = "layers.{}."
    whole: str = ""
    """A learned vector, the class token, before the patches; it represents the image; "" = none."""
    places: str = ""
    """The learned table of places; "" = none."""
    rows: int = 0
    """Of it."""
    stacks: int = 0
    """That table is a separate tensor [stacks, rows / stacks, hidden], and `whole` one of [1, 1, hidden]. 0: the table is the
    weight of a module, and `whole` a vector."""
    last: bool = False
    """It is a separate tensor, with the row of `whole` last."""
    prefix: tuple[str, int] = ("", 0)
    """A tensor [n, hidden], and n: learned vectors before the patches of an image. They are the first of `rows`. Their patches
    have values of 0, so `patch_bias` must be False."""
    neighbours: bool = False
    """`Patches.place` has the distances to the neighbours of each patch in the batch, and `share` is 0 for those beyond the
    image. Layers have `GridConv`, and there is no table of places."""
    enter: AnyNorm | None = None
    """Of embedded patches, with their places."""
    embedded: AnyNorm | None = None
    """Of embedded patches, before places are added."""
    leave: AnyNorm | None = None
    """Of the last layer's output."""
    windowed: frozenset[int] = frozenset()
    """Layers that see windows."""
    taps: tuple[tuple[int, ProjectorSpec], ...] = ()
    """Layers with additional output vectors: the language model adds those to the outputs of its first layers."""
    shrinks: tuple[int, ProjectorSpec] | None = None
    """After this layer as many neighbours as its `group` become one: their mean, plus the projector's output."""
    reads: tuple[int, ...] = ()
    """Layers with outputs that are concatenated for the projector. (): it reads the last layer's."""
    pool: AttentionPoolSpec | None = None
    """One vector per image, which the projector reads. None: it reads those of patches."""
    resampler: AnyResampler | None = None
    """In place of the projector. Rows and columns of patches are in the batch. None: there is a projector."""
    newline: str = ""
    """A learned vector, of the language model's size, that stands behind those of the projector; "" = none."""
    separator: str = ""
    """A second learned vector behind it; "" = none."""
    newlines: TrailingRows | None = None
    """`newline` is a table, and several of its rows stand there. None: it is one vector."""
    scale: float = 1.0
    """Of the vectors that the language model gets."""
    masked: bool = False
    """Views have equally many patches, and no patch attends to those with a `Patches.share` of 0. Layers have `Attention`
    without rotation and `UngatedMLP`."""
    clipped: bool = False
    """Inputs and outputs of each linear layer of `layers` are clamped, to limits that are numbers in files."""
    halves: bool = False
    """Rotary positions rotate the halves of each head separately, the first by columns, the second by rows. The second and
    third quarters of q and k are therefore swapped, and the whole is rotated at once."""

    def _add_clips(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """The same with the clamp limits of each part's inputs and outputs, for each linear layer."""
        result: dict[str, Any] = {}
        for key, value in tree.items():
            if isinstance(value, Mapping) and isinstance(value.get("weight"), Weight) and value["weight"].role == "linear":
                names = dict.fromkeys(s.name.removesuffix(".weight") for s in value["weight"].sources)
                limits = [f"{name}.{side}_{end}" for name in names for side in ("input", "output") for end in ("min", "max")]
                clip = Weight(
                    tuple(Source(f"{n}.1", (1,), within=TensorView(n, ())) for n in limits), dtype="float32", fill="zeros"
                )
                result[key] = {**value, "clip": clip}
            else:
                result[key] = self._add_clips(value) if isinstance(value, Mapping) else value
        return result

    def _table(self) -> Iterator[Source]:
        """The learned places. Of a stack each part is a source."""
        name = f"{self.root}{self.places}"
        if self.last:
            stored = (self.rows, self.hidden)
            yield Source(f"{name}.whole", (1, self.hidden), within=TensorView(name, stored, first=self.rows - 1))
            yield Source(f"{name}.rest", (self.rows - 1, self.hidden), within=TensorView(name, stored))
        elif not self.stacks:
            yield Source(f"{name}.weight", (self.rows, self.hidden))
        first, count = self.prefix
        if first:
            yield Source(f"{self.root}{first}", (count, self.hidden))
        each = ((self.rows - count) // max(self.stacks, 1), self.hidden)
        for i in range(self.stacks):
            yield Source(f"{name}.{i}", each, within=TensorView(name, (self.stacks, *each), at=i))

    @property
    def width(self) -> int:
        """Size of a placeholder's vector, in hidden sizes of the language model."""
        return self.resampler.width if isinstance(self.resampler, WindowQFormersSpec) else 1 + len(self.taps)

    def weights(self, hidden: int) -> Weights:
        """hidden: the language model's. Every parameter is whole on each rank, and held in the model's dtype."""
        name = f"{self.root}{self.patch}"
        result: dict[str, Any] = {
            "patch": {"weight": convolution(name, self.hidden, self.kernel)},
            "layers": {i: each.weights(self.root + self.layer.format(i), self.hidden) for i, each in enumerate(self.layers)},
            "projector": self.projector.weights(),
            "taps": {i: each.weights() for i, (_, each) in enumerate(self.taps)},
        }
        if self.shrinks is not None:
            result["shrinks"] = self.shrinks[1].weights()
        if self.video[0]:
            result["video"] = {"weight": convolution(f"{self.root}{self.video[0]}", self.hidden, (self.video[1],))}
        if self.patch_bias:
            result["patch"]["bias"] = vector(f"{name}.bias", self.hidden)
        if self.whole:
            ones = (1,) * (2 if self.stacks else 0)
            result["whole"] = Weight((Source(f"{self.root}{self.whole}", (*ones, self.hidden)),))
        if self.places:
            result["places"] = {"weight": Weight(tuple(self._table()))}
        if self.pool is not None:
            result["pool"] = self.pool.weights(self.root)
        if self.resampler is not None:
            result["resampler"] = self.resampler.weights(hidden)
        if self.newline:
            several = self.newlines
            result["newline"] = vector(self.newline, hidden) if several is None else several.weight(self.newline, hidden)
            if self.separator:
                result["newline"] = Weight(tuple(Source(name, (hidden,)) for name in (self.newline, self.separator)))
        if self.clipped:
            result["layers"] = {i: self._add_clips(each) for i, each in result["layers"].items()}
        if self.halves:
            for i, each in enumerate(self.layers):
                result["layers"][i] = {**result["layers"][i], "mixer": _swap_quarters(result["layers"][i]["mixer"], each)}
        for key, norm in (("embedded", self.embedded), ("enter", self.enter), ("leave", self.leave)):
            if norm is not None:
                result[key] = norm.weights(self.root)
        return plain(result)


def _swap_quarters(mixer: Mapping[str, Any], layer: Layer) -> dict[str, Any]:
    """With q and k, and their norms, as `VisionSpec.halves` says."""
    (attention,) = layer.mixers
    head_dim = attention.widths[2]

    def swap_quarters(s: Source) -> Source:
        return Source(f"{s.name}.halved", s.shape, within=TensorView(s.name, s.shape, quarters=head_dim))

    weight = mixer["qkv"]["weight"]
    q, k, *v = weight.sources
    norms = {
        key: {"weight": replace(mixer[key]["weight"], sources=tuple(map(swap_quarters, mixer[key]["weight"].sources)))}
        for key in ("q_norm", "k_norm") if key in mixer
    }  # fmt: skip
    return {
        **mixer,
        "qkv": {**mixer["qkv"], "weight": replace(weight, sources=(swap_quarters(q), swap_quarters(k), *v))},
        **norms,
    }


def plain(tree: Mapping[Any, Any]) -> dict[Any, Any]:
    """The same, with roles and shards that say: leave it as it is."""
    return {
        key: plain(value) if isinstance(value, Mapping) else replace(value, role="plain", shard=None)
        for key, value in tree.items()
    }
