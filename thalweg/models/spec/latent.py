"""Attention with keys and values that are projections of one small vector per token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from thalweg.hal.attention import AttnSpec
from thalweg.models.spec.indexer import Indexer, growth_weights
from thalweg.models.spec.norm import GatedNorm, Norm
from thalweg.models.spec.pooled_index import PooledIndexer
from thalweg.models.spec.rope import Rope
from thalweg.models.weights import Source, TensorView, Weight, Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (MLA). Of a token it keeps a normed latent and one rotated key, which all heads share. A
    head's key is its up-projection of the latent, then that rotated key. Its value is another up-projection of the latent."""

    heads: int
    latent: int
    """Values of the latent (`kv_lora_rank`)."""
    nope_dim: int
    """Dimensions of a head's q and k without rotation. They come first."""
    value_dim: int
    rope: Rope | None
    """Of the rest of q, and of the decoupled RoPE key. None: NoPE."""
    still: int = 0
    """Where there is no `rope`: values of the rest of q, and of the key that all heads share."""
    q_latent: int = 0
    """q is a projection of a separate normed latent of this size (`q_lora_rank`). 0 = of x."""
    scale: float = 0.0
    """Of the scores. 0 = by the size of a head's q."""
    eps: float = 1e-6
    """Of the norms of both latents."""
    gated_norm: GatedNorm | None = None
    """The norm of both latents, but for names and sizes. None: RMSNorm."""
    latent_scale: float = 1.0
    """Of the normed latent of keys and values."""
    bias: bool = False
    """Of the projections down to latents, and of the last one."""
    grows: tuple[float, int] | None = None
    """As `Attention.grows`."""
    softmax_scaling: str = ""
    """Tensors of two numbers per head: q is multiplied by scale * log(position + 1) + bias; "" = none."""
    top: int = 0
    """Tokens that a token reads at the most; 0 = all."""
    indexer: Indexer | PooledIndexer | None = None
    """It selects them. None, where there is a `top`: the indices of the last layer with an indexer are reused."""
    gate: str = ""
    """The matrix of a gate: its sigmoids multiply the heads' outputs, one per head; "" = none."""
    gate_values: bool = False
    """And one per value."""
    q_gate: bool = False
    """q's projection reads its latent after the norm and before, and gives each head's q, and then the gates of its values."""
    key_norm: str = ""
    """The norm of the rotary key that all heads share, before it turns; "" = none."""
    window: int = 0
    """A token sees itself and the window - 1 tokens before it; 0 = all. All tokens are kept in any case."""
    sinks: str = ""
    """The tensor of a learned logit per head, as in `AttnSpec.sinks`; "" = none."""
    name: str = "self_attn"

    def __post_init__(self) -> None:
        if self.rope is not None and self.still:
            raise ValueError("LatentAttention: a part of q turns, or has so many values that do not")
        if isinstance(self.indexer, Indexer) and self.indexer.turns == (self.rope is None):
            raise ValueError("LatentAttention: an indexer turns its heads as attention does")
        if self.window and self.top:
            raise ValueError("LatentAttention: layers with a window read all of its tokens")
        if self.q_gate and (self.gate or not self.q_latent):
            raise ValueError("LatentAttention: gates with q read the latent of q, and exclude a gate matrix")
        apart = isinstance(self.indexer, Indexer) and self.indexer.apart
        if self.indexer is not None and not (self.top and (self.q_latent or apart)):
            raise ValueError("LatentAttention: an indexer reads the latent of q, and chooses so many tokens")

    @property
    def rope_dim(self) -> int:
        return self.still if self.rope is None else self.rope.dim

    @property
    def widths(self) -> tuple[int, int, int]:
        """As in attention. A step holds q and the output as latents, about as much as keys and values of all heads."""
        return self.heads, self.heads, self.latent + self.rope_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> AttnSpec:
        """The latent and the decoupled RoPE key of each token, on every rank, and the key of the indexer. The indexer is left
        out where no sequence is longer than `top`."""
        top = self.top if self.top < max_len else 0
        return AttnSpec(
            heads=self.heads // ranks, kv_heads=1, head_dim=self.latent + self.rope_dim,
            scale=self.scale or (self.nope_dim + self.rope_dim) ** -0.5, dtype=dtype, kind="latent", kv_dtype=kv_dtype,
            latent=self.latent, index=self.indexer.dim if top and isinstance(self.indexer, Indexer) else 0, top=top,
            sinks=bool(self.sinks), window=self.window,
        )  # fmt: skip

    def weights(self, at: str, hidden: int) -> Weights:
        at, each = f"{at}{self.name}.", self.nope_dim + self.rope_dim
        down = {f"{at}q_a_proj": self.q_latent} if self.q_latent else {}
        down[f"{at}kv_a_proj_with_mqa"] = self.latent + self.rope_dim
        result: dict[str, Any] = {
            "down": linear(down, hidden, shard=None, bias=self.bias),
            "kv_norm": self.norm_of("kv_a_layernorm", self.latent).weights(at),
            "k_up": {"weight": self._up(at, "k_b_proj", 0, self.nope_dim)},
            "v_up": {"weight": self._up(at, "v_b_proj", self.nope_dim, self.value_dim)},
            "out": linear({f"{at}o_proj": hidden}, self.heads * self.value_dim, shard=1, bias=self.bias),
        }
        if self.q_latent:
            result["q_norm"] = self.norm_of("q_a_layernorm", self.q_latent).weights(at)
        if self.softmax_scaling:
            result["grows"] = growth_weights(f"{at}{self.softmax_scaling}", self.heads, shard=0)
        if self.key_norm:
            result["key_norm"] = Norm(self.key_norm, self.rope_dim, self.eps).weights(at)
        if self.sinks:
            result["sinks"] = {"weight": vector(f"{at}{self.sinks}", self.heads, shard=0)}
        if self.indexer is not None:
            result["indexer"] = self.indexer.weights(at, hidden, self.q_latent)
        if self.gate:
            outputs = self.heads * (self.value_dim if self.gate_values else 1)
            result["gate"] = linear({f"{at}{self.gate}": outputs}, hidden, shard=0)
        q = "q_b_proj" if self.q_latent else "q_proj"
        outputs, inputs = (each, self.q_latent or hidden)
        if self.q_gate:
            outputs, inputs = each + self.value_dim, 2 * self.q_latent
        result["q"] = linear({f"{at}{q}": self.heads * outputs}, inputs, shard=0)
        return result

    def norm_of(self, name: str, size: int) -> Norm | GatedNorm:
        """Of a latent."""
        return Norm(name, size, self.eps) if self.gated_norm is None else replace(self.gated_norm, name=name, size=size)

    def _up(self, at: str, name: str, first: int, rows: int) -> Weight:
        """Of every head its rows of one up-projection, [heads * rows, latent]. Most checkpoints keep both, head by head, in one
        tensor. It is dense in any case: one of the two is multiplied from its other side."""
        both = self.nope_dim + self.value_dim
        within = TensorView(f"{at}kv_b_proj.weight", (self.heads * both, self.latent), first=first, run=rows, every=both)
        return Weight((Source(f"{at}{name}.weight", (self.heads * rows, self.latent), within=within),), 0)
