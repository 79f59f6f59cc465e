"""The devices that share one model: how arrays lie on them, and the collectives of a step that runs on every one.

One process drives them all. Inside a step every rank sees its own part of divided arrays and the whole of the rest.
It does not see which rank it is. Collectives are XLA's, over the mesh's only axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from thalweg.backends.tpu.interop import in_jax
from thalweg.hal.comm import Communicator, Solo

AXIS = "rank"


class Ranks:
    """One device or several, in rank order."""

    def __init__(self, devices: Sequence[Any]) -> None:
        self.devices = tuple(devices)
        self.size = len(self.devices)
        self.mesh = Mesh(np.array(self.devices), (AXIS,)) if self.size > 1 else None
        self.comm: Communicator = MeshCommunicator(self.size) if self.mesh else Solo()

    def whole(self) -> Sharding:
        """Every rank holds the whole."""
        return self._sharding(PartitionSpec())

    def shard_along(self, dim: int) -> Sharding:
        """Every rank holds its part along `dim`."""
        return self._sharding(PartitionSpec(*[None] * dim, AXIS))

    def _sharding(self, spec: PartitionSpec) -> Sharding:
        return SingleDeviceSharding(self.devices[0]) if self.mesh is None else NamedSharding(self.mesh, spec)

    def join(self, parts: Sequence[Any]) -> Any:
        """One pytree per rank, each on its device, as one. It is divided along the first dimension of every array whatever that
        means: a rank sees its own pytree again."""

        def one(*arrays: jax.Array) -> jax.Array:
            shape = (self.size * arrays[0].shape[0], *arrays[0].shape[1:])
            return jax.make_array_from_single_device_arrays(shape, self.shard_along(0), list(arrays))

        return jax.tree.map(one, *parts)

    def over(self, f: Any, params: Any, state: Any) -> Any:
        """f(params, state, buffer) -> (state, result) on every rank, with its own parts. Results of f other than the state are
        the same on all ranks. Arguments may be arrays or shapes with shardings."""
        if self.mesh is None:
            return f
        there, held = (jax.tree.map(lambda a: a.sharding.spec, tree) for tree in (params, state))
        whole = PartitionSpec()
        return jax.shard_map(f, mesh=self.mesh, in_specs=(there, held, whole), out_specs=(held, whole), check_vma=False)


class MeshCommunicator(Communicator):
    """Collectives of a step traced under `Ranks.over`."""

    ordered = False

    def __init__(self, size: int) -> None:
        self.size = size

    def all_reduce(self, x: Any) -> Any:
        return in_jax(lambda a: lax.psum(a, AXIS))(x)

    def all_gather(self, x: Any, dim: int = -1) -> Any:
        return in_jax(lambda a: lax.all_gather(a, AXIS, axis=dim % a.ndim, tiled=True))(x)

    def part(self, x: Any, dim: int = -1) -> Any:
        def cut(a: Any) -> Any:
            size = self.part_size(a.shape, dim)
            return lax.dynamic_slice_in_dim(a, lax.axis_index(AXIS) * size, size, axis=dim % a.ndim)

        return in_jax(cut)(x)

    def reduce_scatter(self, x: Any, dim: int = -1) -> Any:
        self.part_size(x.shape, dim)
        return in_jax(lambda a: lax.psum_scatter(a, AXIS, scatter_dimension=dim % a.ndim, tiled=True))(x)

    def all_to_all(self, x: Any, dim: int = 0) -> Any:
        self.part_size(x.shape, dim)
        return in_jax(lambda a: lax.all_to_all(a, AXIS, dim % a.ndim, dim % a.ndim, tiled=True))(x)
