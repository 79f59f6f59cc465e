"""SAM's image encoder (Kirillov et al. 2023, https://arxiv.org/abs/2304.02643), and what models for documents put behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.vision import ProjectorSpec, plain
from thalweg.models.weights import Source, Weight, Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryEncoderSpec:
    """Decoder layers over the vectors of a view, which attend to each other, and learned queries behind them, which are causal.
    The outputs of the queries represent the view (DeepSeek-OCR 2, https://arxiv.org/abs/2601.20552)."""

    root: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    eps: float
    theta: float
    queries: tuple[tuple[int, str], ...]
    """(number of queries, tensor of them), of views with at most as many vectors, ascending."""

    def weights(self) -> Weights:
        return {
            "queries": {i: Weight((Source(f"{name}.weight", (n, self.hidden)),)) for i, (n, name) in enumerate(self.queries)},
            "layers": {i: self._layer(f"{self.root}layers.{i}.") for i in range(self.layers)},
            "norm": vector(f"{self.root}norm.weight", self.hidden),
        }

    def _layer(self, at: str) -> Weights:
        n, each = self.hidden, self.hidden // self.heads
        a, m, wide = f"{at}self_attn.", f"{at}mlp.", each * self.kv_heads
        return {
            "norm1": vector(f"{at}input_layernorm.weight", n),
            "qkv": linear({f"{a}q_proj": n, f"{a}k_proj": wide, f"{a}v_proj": wide}, n, shard=0, bias=True),
            "out": linear({f"{a}o_proj": n}, n, shard=0),
            "norm2": vector(f"{at}post_attention_layernorm.weight", n),
            "up": linear({f"{m}gate_proj": self.inner, f"{m}up_proj": self.inner}, n, shard=0),
            "down": linear({f"{m}down_proj": n}, self.inner, shard=0),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipReaderSpec:
    """CLIP's layers over the vectors of a view in place of patches. Their outputs are joined with these vectors (DeepSeek-OCR,
    https://arxiv.org/abs/2510.18234)."""

    root: str
    hidden: int
    layers: int
    heads: int
    inner: int
    grid: int
    """Vectors along an edge of a view for which positions are stored."""
    eps: float = 1e-5

    def weights(self) -> Weights:
        n, at = self.hidden, f"{self.root}embeddings."
        return {
            "whole": vector(f"{at}class_embedding", n),
            "places": Weight((Source(f"{at}position_embedding.weight", (self.grid**2 + 1, n)),)),
            "enter": _norm(f"{self.root}pre_layrnorm", n),
            "layers": {i: self._layer(f"{self.root}transformer.layers.{i}.") for i in range(self.layers)},
        }

    def _layer(self, at: str) -> Weights:
        n = self.hidden
        return {
            "norm1": _norm(f"{at}layer_norm1", n), "norm2": _norm(f"{at}layer_norm2", n),
            "qkv": linear({f"{at}self_attn.qkv_proj": 3 * n}, n, shard=0, bias=True),
            "out": linear({f"{at}self_attn.out_proj": n}, n, shard=0, bias=True),
            "up": linear({f"{at}mlp.fc1": self.inner}, n, shard=0, bias=True),
            "down": linear({f"{at}mlp.fc2": n}, self.inner, shard=0, bias=True),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SamSpec:
    """Layers over square views, most with attention within windows, all with learned distances along rows and columns, then
    convolutions that shrink the grid."""

    hidden: int
    layers: int
    heads: int
    inner: int
    act: str
    eps: float
    patch: int
    window: int
    """Patches along an edge of a window."""
    wide: frozenset[int]
    """Layers that see a whole view."""
    grid: int
    """Patches along an edge of an image's last view, for which positions are stored."""
    tile: int
    """The same of its other views."""
    channels: int
    """Of the two convolutions that keep the grid."""
    convs: tuple[tuple[str, int], ...]
    """(name, channels) of the convolutions behind them. Each halves the grid."""
    bias: bool
    """Of q, k and v."""
    places: bool
    """Has it a table of positions?"""
    distances: bool
    """Has it learned distances?"""
    projector: ProjectorSpec
    reader: QueryEncoderSpec | ClipReaderSpec | None = None
    """Of the vectors of each view."""
    learned: tuple[str, ...] = ()
    """Learned vectors of the language model's size. They are numbered behind an image's, and `Patches.mix` places them."""
    root: str = "model.vision_tower."
    shrinks: None = None
    """As of `VisionSpec`, as are the next."""

    @property
    def width(self) -> int:
        return 1

    def weights(self, hidden: int) -> Weights:
        """hidden: the language model's. Every parameter is whole on each rank, and held in the model's dtype."""
        at, n, c = self.root, self.hidden, self.channels
        patch = f"{at}patch_embed.projection"
        result: dict[str, Any] = {
            "patch": {**_conv(patch, n, 3, self.patch), "bias": vector(f"{patch}.bias", n)},
            "layers": {i: self._layer(f"{at}layers.{i}.", i) for i in range(self.layers)},
            "neck": self.neck_weights(f"{at}neck."),
            "convs": {
                i: _conv(name, size, inputs, 3)
                for i, ((name, size), inputs) in enumerate(zip(self.convs, (c, *(s for _, s in self.convs)), strict=False))
            },
            "projector": self.projector.weights(),
        }  # fmt: skip
        if self.places:
            result["places"] = Weight((Source(f"{at}pos_embed", (1, self.grid, self.grid, n)),))
        if self.reader is not None:
            result["reader"] = self.reader.weights()
        if self.learned:
            result["learned"] = {i: vector(name, hidden) for i, name in enumerate(self.learned)}
        return plain(result)

    def neck_weights(self, at: str) -> Weights:
        """The convolutions that keep the grid. at: what their names begin with."""
        c = self.channels
        return {
            "conv1": _conv(f"{at}conv1", c, self.hidden, 1), "norm1": _norm(f"{at}layer_norm1", c),
            "conv2": _conv(f"{at}conv2", c, c, 3), "norm2": _norm(f"{at}layer_norm2", c),
        }  # fmt: skip

    def _layer(self, at: str, i: int) -> Weights:
        n, each = self.hidden, self.hidden // self.heads
        result: dict[str, Any] = {
            "norm1": _norm(f"{at}layer_norm1", n), "norm2": _norm(f"{at}layer_norm2", n),
            "qkv": linear({f"{at}attn.qkv": 3 * n}, n, shard=0, bias=self.bias),
            "out": linear({f"{at}attn.proj": n}, n, shard=0, bias=True),
            "up": linear({f"{at}mlp.lin1": self.inner}, n, shard=0, bias=True),
            "down": linear({f"{at}mlp.lin2": n}, self.inner, shard=0, bias=True),
        }  # fmt: skip
        if self.distances:
            rows = 2 * (self.grid if i in self.wide else self.window) - 1
            result |= {axis: Weight((Source(f"{at}attn.rel_pos_{axis}", (rows, each)),)) for axis in ("h", "w")}
        return result


def _norm(name: str, size: int) -> Weights:
    return {"scale": vector(f"{name}.weight", size), "shift": vector(f"{name}.bias", size)}


def _conv(name: str, outputs: int, inputs: int, side: int) -> Weights:
    return {"kernel": Weight((Source(f"{name}.weight", (outputs, inputs, side, side)),))}
