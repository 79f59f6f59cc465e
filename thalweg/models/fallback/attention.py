"""The attention function that replaces the one of transformers' modules, and its supported arguments.

An unknown argument of a class's attention rejects the class: without it the model would compute something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from thalweg.errors import UnsupportedModelError

NAME = "thalweg"
"""Of the attention implementation that served modules have. There is no mask function of this name, so no masks are made."""
PROBED = "thalweg-probed"
"""The same for probing: masks are made, and read."""
HANDED = "thalweg_sink"
"""Argument of the module's call that passes the `AttentionHandler` on to its layers."""
UNDERSTOOD = frozenset({"sliding_window", "softcap", "s_aux", "is_causal"})
"""Supported arguments that change attention."""
WITHOUT_MEANING = frozenset({
    "cache_position", "output_attentions", "output_hidden_states", "output_router_logits", "position_ids", "return_dict",
    "use_cache", "position_embeddings", "logits_to_keep", "deterministic", "num_items_in_batch", "layer_idx",
})  # fmt: skip
"""Arguments that pass through all layers, and change nothing of attention after rotation."""


class AttentionHandler(Protocol):
    """The handler of a module's attention layers."""

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, arguments: Mapping[str, Any]
    ) -> Tensor:
        """q [1, heads, T, D], k and v [1, kv_heads, T, ...] -> [1, T, heads, D of v]."""


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: Any = None,
    dropout: float = 0.0, **arguments: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """As transformers calls it. UnsupportedModelError names an unknown argument."""
    sink: AttentionHandler | None = arguments.pop(HANDED, None)
    if sink is None:
        raise UnsupportedModelError("its layers do not pass the arguments of the model's call on")
    if dropout:
        raise UnsupportedModelError(f"its attention drops weights (dropout {dropout!r:.20})")
    for name, value_of in arguments.items():
        if name not in UNDERSTOOD and name not in WITHOUT_MEANING and value_of is not None and value_of is not False:
            raise UnsupportedModelError(f"its attention has the argument {name!r}, which this version does not support")
    return sink.attend(module, query, key, value, attention_mask, {**arguments, "scaling": scaling}), None


def register() -> None:
    """Make both names known to transformers. Doing it again changes nothing."""
    for name in (NAME, PROBED):
        if name not in ALL_ATTENTION_FUNCTIONS.valid_keys():
            AttentionInterface.register(name, attend)
