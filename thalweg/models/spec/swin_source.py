"""Swin, the image encoder of Donut (Liu et al. 2021, https://arxiv.org/abs/2103.14030), for decoders with cross-attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from thalweg.models.spec.vision import plain
from thalweg.models.weights import Source, Weight, Weights, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class SwinSource:
    """Stages of attention within windows, every other of which are shifted. Between stages four neighbours become one."""

    rows: int
    columns: int
    """Pixels of an image."""
    patch: int
    channels: int
    hidden: int
    """Of the first stage. Each further one has twice as much."""
    depths: tuple[int, ...]
    heads: tuple[int, ...]
    window: int
    """Patches along an edge of a window."""
    inner: float
    """Inner values of feed-forward parts, in widths."""
    act: str
    bias: bool
    """Of q, k and v."""
    eps: float
    layers: ClassVar[tuple[Any, ...]] = ()
    """As of other encoders. Its layers are of another kind."""
    root: str = "model.encoder."

    @property
    def outputs(self) -> int:
        """Size of a vector."""
        return self.hidden << (len(self.depths) - 1)

    @property
    def sources(self) -> int:
        """Vectors of an image."""
        rows, columns = self.rows // self.patch, self.columns // self.patch
        for _ in self.depths[1:]:
            rows, columns = -(-rows // 2), -(-columns // 2)
        return rows * columns

    @property
    def frames(self) -> int:
        """Rows of its largest step, in vectors of the last stage."""
        return (self.rows // self.patch) * (self.columns // self.patch) >> (len(self.depths) - 1)

    def weights(self, at: str) -> Weights:
        root, n = f"{self.root}embeddings.", self.hidden
        result: dict[str, Any] = {
            "patch": _affine(f"{root}patch_embeddings.projection", n, self.channels, self.patch, self.patch),
            "norm": _affine(f"{root}norm", n),
            "stages": {i: self._stage(i, n << i) for i in range(len(self.depths))},
        }
        return plain(result)

    def _stage(self, i: int, n: int) -> Weights:
        at = f"{self.root}encoder.layers.{i}."
        result: dict[str, Any] = {"blocks": {j: self._block(f"{at}blocks.{j}.", i, n) for j in range(self.depths[i])}}
        if i + 1 < len(self.depths):
            result["merge_norm"] = _affine(f"{at}downsample.norm", 4 * n)
            result["merge"] = {"weight": _tensor(f"{at}downsample.reduction.weight", 2 * n, 4 * n)}
        return result

    def _block(self, at: str, i: int, n: int) -> Weights:
        inner, own = int(n * self.inner), f"{at}attention.self."
        parts = {
            key: _affine(f"{own}{key}", n, n) if self.bias else {"weight": _tensor(f"{own}{key}.weight", n, n)}
            for key in ("query", "key", "value")
        }
        return {
            **parts, "norm1": _affine(f"{at}layernorm_before", n), "norm2": _affine(f"{at}layernorm_after", n),
            "places": _tensor(f"{own}relative_position_bias_table", (2 * self.window - 1) ** 2, self.heads[i]),
            "out": _affine(f"{at}attention.output.dense", n, n), "up": _affine(f"{at}intermediate.dense", inner, n),
            "down": _affine(f"{at}output.dense", n, inner),
        }  # fmt: skip


def _tensor(name: str, *shape: int) -> Weight:
    return Weight((Source(name, shape),))


def _affine(name: str, *shape: int) -> Weights:
    return {"weight": _tensor(f"{name}.weight", *shape), "bias": vector(f"{name}.bias", shape[0])}
