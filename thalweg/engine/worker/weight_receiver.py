"""The process that receives new weights from a trainer, by broadcasts of torch.distributed, and writes them into files.

It ends with its parent, or with the channel.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from thalweg.checkpoint.staging import TensorSpec, encode_header
from thalweg.engine.ipc.codec import Codec
from thalweg.engine.ipc.socket import Channel, ChannelClosedError
from thalweg.engine.ipc.weights import JoinGroup, ReceiveTensors, ToReceiver, TransferDone
from thalweg.host.parent import die_with_parent


def join_group(m: JoinGroup) -> None:
    """Join the trainer's process group. It hosts rank 0, which also answers at the address."""
    host = f"[{m.address}]" if ":" in m.address else m.address
    timeout = timedelta(seconds=m.timeout)
    dist.init_process_group(m.backend, f"tcp://{host}:{m.port}", timeout, m.world_size, m.rank)


def receive_tensors(m: ReceiveTensors) -> None:
    """One broadcast from rank 0 for each tensor, in order."""
    specs = [TensorSpec(*tensor) for tensor in m.tensors]
    kinds = {spec.dtype: getattr(torch, spec.dtype) for spec in specs}
    with Path(m.file or os.devnull).open("wb") as out:
        out.write(encode_header(specs, {name: kind.itemsize for name, kind in kinds.items()}))
        for spec in specs:
            got = torch.empty(spec.shape, dtype=kinds[spec.dtype])
            dist.broadcast(got, 0)
            out.write(got.reshape(-1).view(torch.uint8).numpy().data)


def main(descriptor: int) -> None:
    """Answer messages until the channel is closed."""
    channel = Channel(descriptor, Codec[Any](ToReceiver))
    while True:
        try:
            message = channel.receive()
        except ChannelClosedError:
            return
        error = ""
        try:
            join_group(message) if isinstance(message, JoinGroup) else receive_tensors(message)
        except Exception as e:  # the parent tells the trainer
            error = f"{type(e).__name__}: {e}"
        channel.send(TransferDone(error))


if __name__ == "__main__":
    die_with_parent()
    main(int(sys.argv[1]))
