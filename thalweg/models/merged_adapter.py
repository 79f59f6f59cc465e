"""Low-rank changes (LoRA) of a checkpoint's matrices, added as these are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from thalweg.errors import CheckpointError
from thalweg.models.spec import Adapter

DOWN, UP, BASE = ".lora_A.weight", ".lora_B.weight", "base_model.model."


class MergedAdapter:
    """The changes of an adapter. CheckpointError names an adapter tensor that changes no tensor of the model."""

    def __init__(self, adapter: Adapter | None, stored: Mapping[str, str], rename: Callable[[str], str | None]) -> None:
        """stored: names that the layers know -> those of the files. rename: the second to the first."""
        self.names: frozenset[str] = frozenset()
        """Of the adapter's tensors, as the layers know them."""
        self._scale, self._parts = 0.0, dict[str, tuple[str, str]]()
        if adapter is None:
            return
        self._scale, at = adapter.scale, f"{adapter.folder}/"
        self.names = frozenset(name for name in stored if name.startswith(at))
        for name in self.names:
            bare = name.removeprefix(at).removeprefix(BASE)
            of = rename(bare.removesuffix(DOWN).removesuffix(UP) + ".weight")
            down, up = (name.removesuffix(DOWN).removesuffix(UP) + end for end in (DOWN, UP))
            if of is None or not bare.endswith((DOWN, UP)) or of not in stored or {down, up} - self.names:
                raise CheckpointError(f"{name}: this part of an adapter changes no matrix of the model")
            self._parts[of] = (stored[down], stored[up])

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def change(self, name: str, read: Callable[[str], torch.Tensor], rows: slice | None, columns: slice | None) -> torch.Tensor:
        """The addition to a matrix, or to these rows and columns, in float32. read: a tensor of the files."""
        down, up = (read(part).to(torch.float32) for part in self._parts[name])
        down, up = down if columns is None else down[:, columns], up if rows is None else up[rows]
        return up @ down * self._scale
