"""The child: `python -m thalweg_executor.child FD` builds a worker, and answers until the other end closes."""

from __future__ import annotations

import sys
from typing import Any

from thalweg.engine import messages as m
from thalweg.engine.ipc.codec import Codec
from thalweg.engine.ipc.socket import Channel, ChannelClosedError
from thalweg.engine.ipc.steps import read_step, write_step
from thalweg.engine.worker.build import build
from thalweg.engine.worker.worker import Worker
from thalweg_executor import Answer, Call, Launch, ToChild


def main(fd: int) -> int:
    channel = Channel(fd, Codec[Any](ToChild))
    try:
        worker = build(channel.receive().args)
        channel.send(m.Ready(worker.config, worker.plan, worker.load_seconds))
    except ChannelClosedError:
        return 0
    except Exception as e:
        channel.send(m.EngineFailed(type(e).__name__, str(e)))
        return 1
    try:
        while True:
            channel.send(answer(worker, channel.receive()))
    except ChannelClosedError:
        return 0
    finally:
        worker.close()


def answer(worker: Worker, message: Launch | Call) -> Answer | m.EngineFailed:
    try:
        if isinstance(message, Launch):
            return Answer(write_step(worker.launch(read_step(message.batch)).result()))
        return Answer(worker.call(message.operation, *message.arguments))
    except Exception as e:
        return m.EngineFailed(type(e).__name__, str(e))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
