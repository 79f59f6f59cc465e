"""Conformer layers and an adapter that joins their states, as the source of cross-attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.conformer_layer import ConformerLayer
from thalweg.models.spec.entrances import FrameProjection
from thalweg.models.spec.norm import LayerNorm
from thalweg.models.spec.pooling_adapter import PoolingAdapter
from thalweg.models.spec.speech import SpeechEncoder
from thalweg.models.spec.vision import plain
from thalweg.models.weights import Weights, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledSource(SpeechEncoder):
    """The encoder of w2v-BERT, half a feed-forward part behind its norm, an adapter, and a norm (Barrault et al. 2023,
    https://arxiv.org/abs/2308.11596). A row of features is f32[bins, 1 + frames], with the number of frames in front."""

    form: str = "seamless"
    longest: int
    """Hundredths of a second of the longest clip."""
    entrance: FrameProjection
    conformer: ConformerLayer
    depth: int
    """Layers."""
    adapter: PoolingAdapter | None

    @property
    def frames(self) -> int:
        return self.longest

    def weights(self, at: str) -> Weights:
        at, n, inner = f"{at}{self.name}", self.hidden, self.conformer.inner
        result: dict[str, Any] = {
            **self.entrance.weights(at),
            "layers": {i: self.conformer.weights(f"{at}encoder.layers.{i}.") for i in range(self.depth)},
            "last": LayerNorm("encoder.layer_norm", n, self.conformer.eps).weights(at),
            "up": linear({f"{at}intermediate_ffn.intermediate_dense": inner}, n, shard=0, bias=True),
            "down": linear({f"{at}intermediate_ffn.output_dense": n}, inner, shard=0, bias=True),
            "norm": LayerNorm("inner_layer_norm", n, self.conformer.eps).weights(at),
        }
        if self.adapter is not None:
            result["adapter"] = self.adapter.weights()
        return plain(result)
