"""A conformer layer (Gulati et al. 2020, https://arxiv.org/abs/2005.08100): half a feed-forward part, attention, a convolution,
and the other half. Names are those of Parakeet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from thalweg.models.spec.norm import LayerNorm
from thalweg.models.spec.transcript import pointwise
from thalweg.models.weights import Source, Weight, Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformerLayer:
    hidden: int
    heads: int
    inner: int
    act: str
    bias: bool
    """Of attention and feed-forward parts."""
    kernel: int
    """Frames of the convolution."""
    conv_bias: bool
    eps: float = 1e-5
    norm_bias: bool = True
    places: Literal["relative", "rotary", "rotary input", "key", "none"] = "relative"
    """relative: scores with projected sines of distances (Dai et al. 2019). rotary: queries and keys turn. rotary input: the
    input of their projections turns. key: scores with a learned vector for each distance (Shaw et al. 2018)."""
    base: float = 1e4
    """Of rotary positions."""
    reach: tuple[int, int] = (0, 0)
    """Largest distances of keys before and after a query that have separate vectors."""
    causal: bool = False
    """The convolution reads no later frame."""
    chunk: int = 0
    """Frames of a chunk: attention sees the frame's chunk and `chunks` before it. 0: everything."""
    chunks: int = 0
    conv_norm: Literal["batch", "layer"] = "batch"
    half: tuple[float, float] = (1.0, 0.5)
    """Factors of the residual stream and of each feed-forward part."""
    conv: tuple[float, float] = (1.0, 1.0)
    """The same of the convolution."""

    def norm(self, name: str) -> LayerNorm:
        return LayerNorm(name, self.hidden, self.eps, bias=self.norm_bias)

    def weights(self, at: str) -> Weights:
        n = self.hidden
        result: dict[str, Any] = {
            f"ff{i}": {
                "norm": self.norm(f"norm_feed_forward{i}").weights(at),
                "up": linear({f"{at}feed_forward{i}.linear1": self.inner}, n, shard=0, bias=self.bias),
                "down": linear({f"{at}feed_forward{i}.linear2": n}, self.inner, shard=0, bias=self.bias),
            }
            for i in (1, 2)
        }
        result["attn"] = self._attention(at, f"{at}self_attn.")
        result["conv"] = self._convolution(at, f"{at}conv.")
        result["norm"] = self.norm("norm_out").weights(at)
        return result

    def _attention(self, at: str, a: str) -> Weights:
        n, size = self.hidden, self.hidden // self.heads
        result: dict[str, Any] = {
            "norm": self.norm("norm_self_att").weights(at),
            "out": linear({f"{a}o_proj": n}, n, shard=0, bias=self.bias),
        }
        if self.places == "rotary input":
            result["qk"] = linear({f"{a}{x}_proj": n for x in "qk"}, n, shard=0, bias=self.bias)
            result["v"] = linear({f"{a}v_proj": n}, n, shard=0, bias=self.bias)
            return result
        result["qkv"] = linear({f"{a}{x}_proj": n for x in "qkv"}, n, shard=0, bias=self.bias)
        if self.places == "relative":
            result["far"] = linear({f"{a}relative_k_proj": n}, n, shard=0)
            result["content"] = Weight((Source(f"{a}bias_u", (self.heads, size)),))
            result["place"] = Weight((Source(f"{a}bias_v", (self.heads, size)),))
        elif self.places == "key":
            result["distance"] = Weight((Source(f"{a}distance_embedding.weight", (sum(self.reach) + 1, size)),))
        return result

    def _convolution(self, at: str, c: str) -> Weights:
        n = self.hidden
        depth: dict[str, Any] = {"kernel": Weight((Source(f"{c}depthwise_conv.weight", (n, 1, self.kernel)),))}
        after: dict[str, Any] = {"weight": vector(f"{c}norm.weight", n), "bias": vector(f"{c}norm.bias", n)}
        if self.conv_norm == "batch":
            after |= {"mean": vector(f"{c}norm.running_mean", n), "var": vector(f"{c}norm.running_var", n)}
        return {
            "norm": self.norm("norm_conv").weights(at),
            "up": pointwise(f"{c}pointwise_conv1", n, 2 * n, self.conv_bias),
            "depth": depth | ({"bias": vector(f"{c}depthwise_conv.bias", n)} if self.conv_bias else {}),
            self.conv_norm: after,
            "down": pointwise(f"{c}pointwise_conv2", n, n, self.conv_bias),
        }
