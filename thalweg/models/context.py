"""The build context of layers: the device's kernels and attention, the mesh of ranks, and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from thalweg.errors import ConfigError, UnsupportedModelError
from thalweg.hal.attention import AttentionBackend
from thalweg.hal.comm import Mesh
from thalweg.hal.op import Binder, BoundOp, Op
from thalweg.hal.weights import WeightFormat
from thalweg.models.adapters import AdapterPlan
from thalweg.models.weights import IndivisibleError, Source, Weight
from thalweg.quantization.format import Scheme
from thalweg.quantization.online import DENSE_FORMATS


@dataclass(frozen=True, slots=True)
class Context:
    """Layers read it while they are built and keep only their bound ops."""

    binder: Binder
    attention: Sequence[AttentionBackend]
    mesh: Mesh
    dtype: str
    max_len: int
    """Longest sequence served, in tokens."""
    block_tokens: int
    formats: Scheme = DENSE_FORMATS
    """Formats of linear layers' weights."""
    kv_dtype: str = ""
    """The dtype of caches (`AttnSpec.kv_dtype`)."""
    kv_skip: tuple[str, ...] = ()
    """Layers with caches of the model's dtype, as in `sizes.skipped`."""
    state_tokens: int = 1
    """The distance, in tokens, at which states of recurrent layers are kept for others: a multiple of block_tokens."""
    spare_states: bool = False
    """Steps verify drafts: sequences have spare blocks for states of recurrent layers (`KVSpec.spare`)."""
    tp_invariant: bool = False
    """No sum is divided among ranks, so that values have the same bits with any number of ranks."""
    encoders: Context | None = None
    """Context of the vision and audio encoders, where they do not run in the queue of the steps."""
    adapters: AdapterPlan | None = None
    """The plan for low-rank adapters of linear layers. None: no adapters."""

    def of_encoder(self) -> Context:
        """For a vision or audio encoder: whole on each rank, in the model's dtype, without adapters."""
        return replace(self.encoders or self, mesh=Mesh(), formats=DENSE_FORMATS, kv_dtype="", kv_skip=(), adapters=None)

    def bind(self, op: Op, **spec: Any) -> BoundOp:
        return self.binder.bind(op, dtype=self.dtype, **spec)

    def format(self, weight: Weight) -> WeightFormat:
        """The format of a parameter. UnsupportedModelError if its tensors differ and it must have one format."""
        found = {self.formats.of(weight.role, s.name): s.name for s in weight.sources}
        if len(found) > 1:
            (a, first), (b, second), *_ = found.items()
            raise UnsupportedModelError(f"{first} is held as {a} and {second} as {b}: this version holds such tensors alike")
        form, first = next(iter(found.items()))
        if weight.role != "linear" and (form.reordered or form.smoothed):
            raise UnsupportedModelError(
                f"{first} is held as {form}: this version reorders and smooths inputs of linear layers only"
            )
        return form

    def share(self, n: int, what: str) -> int:
        """One rank's part of n. ConfigError if the model does not divide so."""
        if n % self.mesh.tensor.size:
            raise ConfigError(f"tensor_parallel_size: {self.mesh.tensor.size} does not divide the model's {n} {what}")
        return n // self.mesh.tensor.size

    def share_outputs(self, source: Source) -> int:
        """Outputs of one rank, of a matrix. Raises as `share`."""
        try:
            return source.shard_shape(0, self.mesh.tensor.size)[0]
        except IndivisibleError:
            return self.share(source.shape[0], f"outputs of {source.name.removesuffix('.weight')}")

    def share_heads(self, n: int, what: str) -> int:
        """Heads of one rank. Where there are fewer than ranks, several ranks have the same one. Raises as `share`."""
        size = self.mesh.tensor.size
        return 1 if n < size and size % n == 0 else self.share(n, what)
