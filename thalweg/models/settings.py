"""From a configuration to what decides a model's shape and memory: sizes, windows, KV groups. Loads no tensor framework, so
that memory can be planned, and a configuration refused, before anything heavy is loaded.

Knows no layer and no kernel: `decoder` builds from this, and agrees with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, max_len, real, rope_parameters, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.hal.kv import KVSpec

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""`hidden_act` of a configuration -> `act` of the op act_and_mul."""
ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
"""What `layers.rotary` computes."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of attention, whole model."""

    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    norm_eps: float | None = None
    """RMSNorm of every head's q and k before rotation; None = none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything about a model that its configuration decides."""

    vocab: int
    hidden: int
    inner: int
    """Width of the MLP."""
    attention: Heads
    windows: tuple[int, ...]
    """Per layer: tokens a token sees, itself included; 0 = all before it."""
    eps: float
    act: str
    mlp_bias: bool
    tied: bool
    """The embedding is also the output matrix."""
    rope: Mapping[str, Any]
    trained: int
    """max_position_embeddings."""

    def windows_within(self, max_len: int) -> tuple[int, ...]:
        """Per layer, where no sequence is longer than max_len: a window no sequence outgrows hides nothing."""
        return tuple(w if w < max_len else 0 for w in self.windows)

    def parameters(self, dtype_bytes: int, max_len: int) -> Parameters:
        """What the layers of `decoder.Decoder` declare, in bytes."""
        h, a = self.hidden, self.attention
        qkv, out = (a.heads + 2 * a.kv_heads) * a.head_dim, a.heads * a.head_dim
        each = qkv * h + out * h + 3 * h * self.inner + 2 * h
        each += qkv * a.qkv_bias + h * a.out_bias + (2 * self.inner + h) * self.mlp_bias
        each += 2 * a.head_dim * (a.norm_eps is not None)
        matrix = self.vocab * h * dtype_bytes
        return Parameters(
            layers=(len(self.windows) * each + h) * dtype_bytes, embedding=matrix, head=matrix, tied=self.tied,
            tables=max_len * a.head_dim * 4,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parameters:
    """Bytes of a model's parameters on one device that holds it whole."""

    layers: int
    """Every layer, and the last norm."""
    embedding: int
    head: int
    tied: bool
    """The two are one tensor of the checkpoint. It lies twice in memory where a kernel packs the head."""
    tables: int
    """Computed, not stored: rotary positions."""

    @property
    def stored(self) -> int:
        """Of the checkpoint's tensors, in this dtype."""
        return self.layers + self.embedding + (0 if self.tied else self.head)


def settings(config: Config, *, windows: tuple[int, ...] | None = None, mlp_bias: bool = False, **heads: Any) -> Settings:
    """What the families' configurations have in common. heads: fields of Heads that the family decides."""
    layers = integer(config, "num_hidden_layers", high=10_000)
    hidden = integer(config, "hidden_size", high=1 << 20)
    n = integer(config, "num_attention_heads", high=1 << 16)
    kv = integer(config, "num_key_value_heads", high=1 << 16, default=n)
    if n % kv:
        raise CheckpointError(f"config.json: num_attention_heads ({n}) must be a multiple of num_key_value_heads ({kv})")
    head_dim = heads.pop("head_dim", None) or integer(config, "head_dim", high=1 << 16, default=max(1, hidden // n))
    act = text(config, "hidden_act", "silu")
    if act not in ACTIVATIONS:
        raise UnsupportedModelError(f"config.json: hidden_act: {act!r:.80} is none of {', '.join(ACTIVATIONS)}")
    rope = rope_parameters(config)
    rope_type(rope, head_dim)
    return Settings(
        vocab=integer(config, "vocab_size", high=1 << 24),
        hidden=hidden,
        inner=integer(config, "intermediate_size", high=1 << 24),
        attention=Heads(n, kv, head_dim, **heads),
        windows=windows or (0,) * layers,
        eps=real(config, "rms_norm_eps", 0, 1, default=1e-6),
        act=ACTIVATIONS[act],
        mlp_bias=mlp_bias,
        tied=flag(config, "tie_word_embeddings", False),
        rope=rope,
        trained=integer(config, "max_position_embeddings", default=max_len(config)),
    )


def sliding_window(config: Config) -> int:
    """`sliding_window` in tokens: null = 0, none; absent = 4096, what the families that have the key assume."""
    return 0 if config.get("sliding_window", 4096) is None else integer(config, "sliding_window", default=4096)


def layer_windows(config: Config) -> tuple[int, ...]:
    """Windows of the families that choose per layer: `layer_types`, or where that is absent every layer from
    `max_window_layers` on; all of it only if `use_sliding_window` says so."""
    layers = integer(config, "num_hidden_layers", high=10_000)
    used = flag(config, "use_sliding_window", False)
    window = sliding_window(config) if used else 0
    types = config.get("layer_types")
    if types is None:
        first = integer(config, "max_window_layers", low=0, default=28)
        types = ["sliding_attention" if window and i >= first else "full_attention" for i in range(layers)]
    if not isinstance(types, list) or len(types) != layers:
        raise CheckpointError(f"config.json: layer_types: must be a list of {layers} names, one per layer")
    odd = sorted({str(t) for t in types} - {"full_attention", "sliding_attention"})
    if odd:
        raise UnsupportedModelError(f"config.json: layer_types: {odd[0]!r:.80} is not supported by this version")
    return tuple(window if t == "sliding_attention" else 0 for t in types)


def rope_type(rope: Mapping[str, Any], head_dim: int) -> str:
    """UnsupportedModelError if this version lacks it, CheckpointError if head_dim is odd."""
    if rope["rope_type"] not in ROPE_TYPES:
        raise UnsupportedModelError(
            f"config.json: rope_type: {rope['rope_type']!r:.80} is not supported; this version has {', '.join(ROPE_TYPES)}"
        )
    if head_dim % 2:
        raise CheckpointError(f"config.json: head_dim: rotary positions need an even number, not {head_dim}")
    return str(rope["rope_type"])


def kv_groups(windows: Sequence[int], block_tokens: int, bytes_per_block: Sequence[int]) -> tuple[KVSpec, ...]:
    """Layers that keep the same tokens share a group, in order of their first layer. Both lists are per layer."""
    groups = []
    for window in dict.fromkeys(windows):
        layers = tuple(i for i, w in enumerate(windows) if w == window)
        size = sum(bytes_per_block[i] for i in layers)
        groups.append(KVSpec("window" if window else "full", block_tokens, size, layers, window))
    return tuple(groups)
