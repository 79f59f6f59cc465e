"""Messages to the process that receives weights from a trainer, and its answers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class JoinGroup(msgspec.Struct, tag=True, frozen=True):
    """Join the trainer's process group as this rank."""

    backend: str
    address: str
    port: int
    rank: int
    world_size: int
    timeout: float
    """Seconds to join, and of each broadcast."""


class ReceiveTensors(msgspec.Struct, tag=True, frozen=True):
    """Receive a broadcast for each tensor (name, dtype, shape), in order, and write them into a safetensors file."""

    file: str | None
    """None: they are dropped."""
    tensors: Sequence[tuple[str, str, tuple[int, ...]]]


class TransferDone(msgspec.Struct, tag=True, frozen=True):
    """The answer to each message."""

    error: str = ""


ToReceiver = JoinGroup | ReceiveTensors
