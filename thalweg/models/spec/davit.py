"""DaViT, the image encoder of Florence-2 (Ding et al. 2022, https://arxiv.org/abs/2204.03645)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.vision import plain
from thalweg.models.weights import Source, Weight, Weights, vector


@dataclass(frozen=True, slots=True)
class DaViTStage:
    """A convolution, then pairs of blocks: attention of patches within windows, and attention of channels within groups."""

    width: int
    depth: int
    kernel: int
    stride: int
    padding: int
    normed_first: bool
    """The norm precedes the convolution."""
    heads: int
    groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DaViTSpec:
    """A square image in; out, a vector of its mean, then one for each position of the last stage."""

    token: int
    """The placeholder of a vector in a source text."""
    channels: int
    stages: tuple[DaViTStage, ...]
    window: int
    inner: float
    """Inner values of feed-forward parts, in widths."""
    act: str
    bias: bool
    """Of q, k and v."""
    places: int
    """Rows of the table of positions along each axis."""
    outputs: int
    root: str = "model.vision_tower."
    projector: str = "model.multi_modal_projector."

    def weights(self) -> Weights:
        at, last = self.projector, self.stages[-1].width
        inputs = (self.channels, *(stage.width for stage in self.stages))
        result: dict[str, Any] = {
            "stages": {i: self._stage(i, stage, inputs[i]) for i, stage in enumerate(self.stages)},
            "rows": _tensor(f"{at}image_position_embed.row_embeddings.weight", self.places, last // 2),
            "columns": _tensor(f"{at}image_position_embed.column_embeddings.weight", self.places, last - last // 2),
            "projection": _tensor(f"{at}image_projection.weight", self.outputs, last),
            "norm": _affine(f"{at}image_proj_norm", self.outputs),
        }
        return plain(result)

    def _stage(self, i: int, stage: DaViTStage, inputs: int) -> Weights:
        at, n = f"{self.root}convs.{i}.", stage.width
        return {
            "conv": _affine(f"{at}conv", n, inputs, stage.kernel, stage.kernel),
            "norm": _affine(f"{at}norm", inputs if stage.normed_first else n),
            "blocks": {
                j: {
                    kind: self._block(f"{self.root}blocks.{i}.{j}.{kind}_block.", f"{name}_attn", n)
                    for kind, name in (("spatial", "window"), ("channel", "channel"))
                }
                for j in range(stage.depth)
            },
        }

    def _block(self, at: str, attention: str, n: int) -> Weights:
        inner, qkv = int(n * self.inner), f"{at}{attention}.qkv"
        return {
            "conv1": _affine(f"{at}conv1", n, 1, 3, 3), "norm1": _affine(f"{at}norm1", n),
            "qkv": _affine(qkv, 3 * n, n) if self.bias else {"weight": _tensor(f"{qkv}.weight", 3 * n, n)},
            "out": _affine(f"{at}{attention}.proj", n, n),
            "conv2": _affine(f"{at}conv2", n, 1, 3, 3), "norm2": _affine(f"{at}norm2", n),
            "up": _affine(f"{at}ffn.fc1", inner, n), "down": _affine(f"{at}ffn.fc2", n, inner),
        }  # fmt: skip


def _tensor(name: str, *shape: int) -> Weight:
    return Weight((Source(name, shape),))


def _affine(name: str, *shape: int) -> Weights:
    return {"weight": _tensor(f"{name}.weight", *shape), "bias": vector(f"{name}.bias", shape[0])}
