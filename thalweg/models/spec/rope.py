"""Rotary positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thalweg.errors import CheckpointError, UnsupportedModelError

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional")
"""What `layers.rotary` computes."""


def rope_type(parameters: Mapping[str, Any], dim: int) -> str:
    """UnsupportedModelError if this version lacks it, CheckpointError if dim is odd."""
    kind = parameters["rope_type"]
    if kind not in ROPE_TYPES:
        raise UnsupportedModelError(
            f"config.json: rope_type: {kind!r:.80} is not supported; this version has {', '.join(ROPE_TYPES)}"
        )
    if dim % 2:
        raise CheckpointError(f"config.json: head_dim: rotary positions need an even number, not {dim}")
    return str(kind)


def describe_stretch(rope: Rope, length: int) -> str:
    """How an engine that serves `length` tokens scales length-dependent positions, and the flag that changes it.
    "" for other scalings. Every sequence is scaled alike, because cached keys must remain valid."""
    kind = rope.parameters["rope_type"]
    original = rope.parameters.get("original_max_position_embeddings", rope.trained) if kind == "longrope" else rope.trained
    if kind not in ("dynamic", "longrope") or not isinstance(original, int):
        return ""
    flag = f"--max-model-len {original}"
    if kind == "longrope":
        if length > original:
            return f"long factors for every sequence, as {length} tokens are served; {flag} takes the short factors"
        return f"short factors, as at most {original} tokens are served; a larger --max-model-len takes the long factors"
    return f"stretched to {length} tokens for every sequence; {flag} leaves them as trained" if length > original else ""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions (`ops.rope`)."""

    parameters: Mapping[str, Any]
    """As `checkpoint.config.rope_parameters` gives them."""
    dim: int
    """Values of a head that turn, from its first."""
    trained: int
    """max_position_embeddings."""
    interleaved: bool = False
    keys: tuple[str, ...] = ()
    """Further keys of `rope_parameters` that the family reads (`families.groups.check_rope`)."""
    scaled: str = ""
    """The tensor, from the root, with the logarithm of a factor of each frequency; "" = none. A model has one such table."""
    given: bool = False
    """The step has the table, with a row for each token rather than each position."""
    sections: tuple[int, ...] = ()
    """Frequencies that turn by each axis of positions with several (M-RoPE); () = there is one."""
    mixed: bool = False
    """The axes take turns among the frequencies, as far as each has some left. Else each has its own stretch."""
    order: tuple[int, ...] = ()
    """The axis of each frequency, if neither holds."""
    second: tuple[int, ...] = ()
    """The same for the second half of a head's values, if it differs: the halves then turn by different angles. Requires
    `order`."""

    @property
    def axes(self) -> tuple[int, ...]:
        """The axis of each frequency."""
        if self.order:
            return self.order
        if not self.mixed:
            return tuple(axis for axis, n in enumerate(self.sections) for _ in range(n))
        count = sum(self.sections)
        return tuple(i % 3 if i % 3 and i < 3 * self.sections[i % 3] else 0 for i in range(count))
