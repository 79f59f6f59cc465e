"""A module's parameters in checkpoint files. Names in files are converted as transformers converts them. Every name and shape
is checked first, by doing all conversions on arrays without memory. Then each group of tensors is read once."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

from thalweg.checkpoint.safetensors import open_checkpoint
from thalweg.checkpoint.weights import Weights
from thalweg.errors import CheckpointError
from thalweg.models.files import FLOATS, as_tensor, some
from thalweg.models.weights import ParamSpec

Read = Callable[[str], Tensor]
"""A tensor of the checkpoint by its name there, or one like it without memory."""


@dataclass(slots=True)
class _ConversionGroup:
    """Tensors of a checkpoint that together make one or several parameters."""

    target: str
    """The first target parameter."""
    converter: Any
    """Transformers' converter for them, before it has read any tensor."""
    parts: list[tuple[str, str]] = field(default_factory=list)
    """(pattern, name in the files), in the order of conversion."""
    wanted: int = 0
    """Parameters not yet requested."""

    def convert(self, model: Any, read: Read) -> dict[str, Tensor]:
        converter = copy.deepcopy(self.converter)
        for pattern, name in self.parts:
            converter.add_tensor(self.target, name, pattern, functools.partial(read, name))
        result = converter.convert(self.target, model=model, config=model.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in result.items()}


class ConvertedFiles:
    """As `models.files.Files`. CheckpointError, before any weight is read, names missing and unexpected tensors and those of
    the wrong shape or type."""

    def __init__(self, model: Any, checkpoint: Weights, device: Any) -> None:
        """model: a `module.Foreign`."""
        self._model, self._dtype = model.module, model.dtype
        self._checkpoint = open_checkpoint(checkpoint.path)  # experts as they lie in the files: conversions know those names
        self._state = self._model.state_dict()
        self._groups: dict[str, _ConversionGroup] = {}
        self._of: dict[str, _ConversionGroup] = {}
        self._ready: dict[str, Tensor] = {}
        extra = self._assign(model.spec)
        self._check(extra)

    def read(self, spec: ParamSpec, rank: int) -> Tensor:
        """A parameter on the host, in spec.dtype."""
        name = spec.sources[0].name
        if name not in self._ready:
            group = self._of[name]
            self._ready |= group.convert(self._model, self._read_tensor)
            for _, source in group.parts:
                self._checkpoint.forget(source)
        value = self._ready.pop(name)
        kind = FLOATS.get(spec.dtype) or getattr(torch, spec.dtype)
        return value.to(kind).reshape(spec.shape(1)).contiguous()

    def locate(self, spec: ParamSpec, rank: int) -> None:
        """Nothing to do: values are computed again."""

    def read_packed(self, spec: ParamSpec, rank: int) -> None:
        """Nothing to do: the module's products use unpacked weights."""

    def _read_tensor(self, name: str) -> Tensor:
        return as_tensor(self._checkpoint.read(name), self._checkpoint.entry(name)[0])

    def _empty(self, name: str) -> Tensor:
        dtype, shape = self._checkpoint.entry(name)
        return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")

    def _assign(self, spec: Any) -> list[str]:
        """Assign every tensor of the files to its parameter. Returns names without a parameter."""
        mapping = get_model_conversion_mapping(self._model)
        renamings = [m for m in mapping if isinstance(m, WeightRenaming)]
        converters = [m for m in mapping if isinstance(m, WeightConverter)]
        by_pattern = {pattern: c for c in converters for pattern in c.source_patterns}
        prefix, extra = self._model.base_model_prefix, []
        for name in sorted(self._checkpoint.names, key=dot_natural_key):
            target, pattern = rename_source_key(name, renamings, converters, prefix, self._state)
            if target not in self._state and name in self._state:
                target, pattern = rename_source_key(name, [], [], prefix, self._state)
            if target not in self._state:
                extra += [] if spec.rename(target) is None or spec.rename(name) is None else [name]
                continue
            if pattern is None:
                group = self._groups.setdefault(target, _ConversionGroup(target, WeightRenaming(name, target)))
                pattern = name
            else:
                group = self._groups.setdefault(target, _ConversionGroup(target, by_pattern[pattern]))
            group.parts.append((pattern, name))
        return extra

    def _check(self, extra: list[str]) -> None:
        wanted = {spec_name: tuple(t.shape) for spec_name, t in self._state.items()}
        problems, found = list[str](), dict[str, str]()
        for group in self._groups.values():
            names = some([name for _, name in group.parts])
            if len(group.parts) > 1 and isinstance(group.converter, WeightRenaming):
                problems.append(f"has {names}, which are one and the same parameter ({group.target})")
                continue
            odd = [name for _, name in group.parts if self._checkpoint.entry(name)[0] not in FLOATS]
            if odd and self._state[group.target].is_floating_point():
                problems.append(
                    f"{odd[0]} has dtype {self._checkpoint.entry(odd[0])[0]}; this version reads {', '.join(FLOATS)}"
                )
                continue
            try:
                result = group.convert(self._model, self._empty)
            except Exception as e:  # whatever transformers' conversion says of shapes that it cannot join
                problems.append(f"{names} cannot be joined to {group.target} ({' '.join(str(e).split())[:120]})")
                continue
            for target, value in result.items():
                self._of[target] = group
                found[target] = names
                if target in wanted and tuple(value.shape) != wanted[target]:
                    problems.append(f"{names} has shape {list(value.shape)}, config.json makes it {list(wanted[target])}")
        tied = self._tied_parameters()
        missing = sorted(n for n in wanted if n not in found and not any(other in found for other in tied.get(n, ())))
        if missing:
            problems.append(f"lacks {some(missing)}")
        extra += [n for n in found if n not in wanted]
        if extra:
            problems.append(f"has {some(sorted(extra))}, which the architecture of config.json does not")
        if problems:
            more = f"; and {len(problems) - 5} more problems" if len(problems) > 5 else ""
            raise CheckpointError(f"{self._checkpoint.path}: the weights do not fit: " + "; ".join(problems[:5]) + more)
        for name in wanted:
            other = next((o for o in tied.get(name, ()) if o in found), None)
            if name not in found and other is not None:
                self._of[name] = self._of[other]

    def _tied_parameters(self) -> dict[str, list[str]]:
        """Parameter -> other names of the same tensor."""
        same: dict[int, list[str]] = {}
        for name, tensor in self._model.state_dict(keep_vars=True).items():
            same.setdefault(id(tensor), []).append(name)
        return {name: [o for o in names if o != name] for names in same.values() for name in names if len(names) > 1}
