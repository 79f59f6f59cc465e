"""Collectives by torch.distributed: NCCL, RCCL (which goes by the same name), XCCL, and gloo where there is no such
device.

One group serves the whole process. The calls enqueue on the current stream, as kernels do. So a graph holds them too
where the library allows it (NCCL and RCCL do, XCCL does not yet).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from thalweg.errors import DeviceError
from thalweg.hal.comm import Communicator
from thalweg.hal.platform import Place

GATHER: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
SCATTER: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""Collectives by their newer names where torch has those."""
RENDEZVOUS = "rendezvous"
"""Key of Place.environment: where the ranks meet, "tcp://host:port" or "file:///path"."""


class TorchCommunicator(Communicator):
    """The ranks of one model. Opening it waits until all of them are there, at most `timeout` seconds."""

    def __init__(self, backend: str, place: Place, timeout: float = 300.0) -> None:
        where = place.environment.get(RENDEZVOUS)
        if not where:
            raise DeviceError(f"device: rank {place.rank} of {place.world} was not told where the ranks meet")
        if not dist.is_backend_available(backend):
            raise DeviceError(f"device: this torch has no {backend}, which {place.world} devices need to work together")
        try:
            dist.init_process_group(
                backend, init_method=where, rank=place.rank, world_size=place.world, timeout=timedelta(seconds=timeout)
            )
        except (RuntimeError, ValueError) as e:
            raise DeviceError(f"device: rank {place.rank} of {place.world} could not join the others at {where}: {e}") from e
        self.size = place.world

    def all_reduce(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        parts = x.new_empty(self.size * x.numel())
        GATHER(parts, x.contiguous().view(-1))
        return _beside(parts.view(self.size, *x.shape), dim)

    def reduce_scatter(self, x: Tensor, dim: int = -1) -> Tensor:
        """This rank's part of the sum, in rank order along `dim`."""
        apart = torch.stack(x.chunk(self.size, dim)).contiguous()
        out = torch.empty_like(apart[0], memory_format=torch.contiguous_format)
        SCATTER(out.view(-1), apart.view(-1))
        return out

    def all_to_all(self, x: Tensor, dim: int = 0) -> Tensor:
        """Part r along `dim` goes to rank r. The parts received are joined in rank order."""
        apart = torch.stack(x.chunk(self.size, dim)).contiguous()
        got = torch.empty_like(apart)
        dist.all_to_all_single(got.view(-1), apart.view(-1))
        return _beside(got, dim)

    def close(self) -> None:
        dist.destroy_process_group()


def _beside(parts: Tensor, dim: int) -> Tensor:
    """[n, ...] -> the n parts joined along `dim` of one part."""
    return torch.cat(parts.unbind(0), dim)
