"""Low-rank changes (LoRA) of a checkpoint's matrices, added as these are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from thalweg.errors import CheckpointError
from thalweg.models.spec import Adapter, StackedAdapter

DOWN, UP, BASE = ".lora_A.weight", ".lora_B.weight", "base_model.model."
STACKED = ".parametrizations.weight.0"


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


class MergedTask:
    """The changes by one task of a `StackedAdapter`. CheckpointError names an adapter tensor that changes no tensor of the
    model, or has the wrong shape."""

    def __init__(self, adapter: StackedAdapter, stored: Mapping[str, str]) -> None:
        """stored: names that the layers know -> those of the files."""
        self._adapter, self._parts = adapter, dict[str, tuple[str, str]]()
        self.names = frozenset(name for name in stored if name.endswith((f"{STACKED}.lora_A", f"{STACKED}.lora_B")))
        """Of the adapter's tensors, as the layers know them."""
        for name in self.names:
            at = name.rpartition(".")[0]
            of = at.removesuffix(STACKED) + ".weight"
            if of not in stored or {f"{at}.lora_A", f"{at}.lora_B"} - self.names:
                raise CheckpointError(f"{name}: this part of an adapter changes no matrix of the model")
            self._parts[of] = (stored[f"{at}.lora_A"], stored[f"{at}.lora_B"])

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def change(self, name: str, read: Callable[[str], torch.Tensor], rows: slice | None, columns: slice | None) -> torch.Tensor:
        """As `MergedAdapter.change`."""
        first, second = (read(part) for part in self._parts[name])
        for part, tensor in zip(self._parts[name], (first, second), strict=True):
            if tensor.dim() != 3 or len(tensor) != self._adapter.tasks or self._adapter.rank not in tensor.shape[1:]:
                raise CheckpointError(
                    f"{part}: has shape {list(tensor.shape)}; lora_adaptations and lora_rank make it one matrix of rank "
                    f"{self._adapter.rank} for each of {self._adapter.tasks} tasks"
                )
        a, b = (tensor[self._adapter.task].to(torch.float32) for tensor in (first, second))
        left, right = (b, a) if b.shape[1] == a.shape[0] == self._adapter.rank else (a, b)
        left, right = left if rows is None else left[rows], right if columns is None else right[:, columns]
        return left @ right * self._adapter.scale


def merge(
    adapter: Adapter | StackedAdapter | None, stored: Mapping[str, str], rename: Callable[[str], str | None]
) -> MergedAdapter | MergedTask:
    """Arguments as of `MergedAdapter`."""
    if isinstance(adapter, StackedAdapter):
        return MergedTask(adapter, stored)
    return MergedAdapter(adapter, stored, rename)
