"""Exchanges of a communicator as compiled steps, run in every rank's process, for test_comm.py.

    python -m thalweg.hal.testing.exchanges PLATFORM OPTIONS PLACE RESULTS

PLATFORM, OPTIONS as the kit's own. PLACE: JSON of this process's place. RESULTS: the file it writes, JSON with the shape
and numbers of each exchange, type and call. Every result is the same on all ranks, as a step's must be.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from thalweg.errors import ThalwegError
from thalweg.hal import discovery
from thalweg.hal.comm import Communicator
from thalweg.hal.device import Device
from thalweg.hal.platform import Place
from thalweg.hal.step import Features, SamplingArrays, StateBox, StepBatch, StepResult, StepShape

ROWS, WIDTH, CALLS = 8, 12, 4
"""Rows of a step, numbers of a rank in each, and steps: written, recorded or captured, and replayed twice."""
KINDS = ("float32", "bfloat16")
VALUES = 64
"""Rows of the table that a step's tokens choose from."""

Exchange = Callable[[Communicator, Any], Any]
"""x [rows, ranks * WIDTH], the same on every rank -> the result of the exchange, the same on every rank."""


def _reduce(comm: Communicator, x: Any) -> Any:
    return comm.all_reduce(comm.part(x) + 0)


def _middle(comm: Communicator, x: Any) -> Any:
    return comm.all_gather(comm.part(x.reshape(ROWS, comm.size, WIDTH), 1), 1)


EXCHANGES: Mapping[str, Exchange] = {
    "reduce": _reduce,
    "reduce one row": lambda comm, x: _reduce(comm, x[:1]),
    "reduce no row": lambda comm, x: _reduce(comm, x[:0]),
    "reduce twice": lambda comm, x: comm.all_reduce(_reduce(comm, x) * 0.5),
    "gather": lambda comm, x: comm.all_gather(comm.part(x)),
    "gather rows": lambda comm, x: comm.all_gather(comm.part(x, 0), 0),
    "gather the middle": _middle,
    "gather no row": lambda comm, x: comm.all_gather(comm.part(x[:0])),
    "scatter": lambda comm, x: comm.all_gather(comm.reduce_scatter(comm.part(x))),
    "scatter rows": lambda comm, x: comm.all_gather(comm.reduce_scatter(comm.part(x), 0), 0),
    "all to all": lambda comm, x: comm.all_gather(comm.all_to_all(comm.part(x), 0), 0),
}
UNEVEN: Mapping[str, Exchange] = {
    "part": lambda comm, x: comm.part(x[:, 1:]),
    "reduce_scatter": lambda comm, x: comm.reduce_scatter(x[1:], 0),
    "all_to_all": lambda comm, x: comm.all_to_all(x[1:], 0),
}
"""Exchanges of arrays without equal parts."""


def table(ranks: int) -> torch.Tensor:
    """float32 [VALUES, ranks * WIDTH], of magnitudes at which the order of a sum shows."""
    rng, shape = np.random.default_rng(11), (VALUES, ranks * WIDTH)
    scales = 10.0 ** rng.integers(-3, 4, shape)
    return torch.from_numpy((rng.standard_normal(shape) * scales).astype(np.float32))


def tokens(call: int) -> np.ndarray:
    """i32 [ROWS] of a call."""
    return np.random.default_rng(call).integers(0, VALUES, ROWS).astype(np.int32)


def _batch(call: int) -> StepBatch:
    """A decode step of ROWS sequences."""
    each, one = np.arange(ROWS, dtype=np.int32), np.ones(ROWS, np.int32)
    return StepBatch(
        tokens=tokens(call), token_seq=each, positions=one * 0, slots=each + 1, context=one * 0, query=one, last_row=each,
        emit=one.astype(bool), block_tables=(np.zeros((ROWS, 1), np.int32),), sampling=SamplingArrays.greedy(ROWS), uniform=1,
    )  # fmt: skip


def _results(device: Device, exchange: Exchange, kind: str) -> list[np.ndarray]:
    """Of each call, as float32."""

    def step(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
        out = exchange(device.comm, params[batch.tokens.long()]).to(torch.float32)
        return state, StepResult(batch.slots[:, None], batch.query, extras={"out": out})

    values = device.put(table(device.comm.size).to(getattr(torch, kind)))
    run = device.compile(
        step, values, StateBox(device.alloc((1,), "int32")), StepShape(ROWS, ROWS, 1, uniform=True), Features()
    )
    return [np.array(run(_batch(call)).result().extras["out"]) for call in range(CALLS)]


def _refusal(device: Device, exchange: Exchange) -> str:
    try:
        _results(device, exchange, "float32")
    except ValueError as e:
        return str(e)
    return ""


def main(name: str, options: str, place: str, results: str) -> None:
    rank = json.loads(place)
    platform = discovery.load(name)
    if options:
        platform = platform.with_options(dataclasses.replace(platform.options, **json.loads(options)))
    try:
        device = platform.open(Place(rank["rank"], rank["world"], tuple(rank["devices"]), rank["environment"]))
    except ThalwegError as e:
        sys.exit(f"cannot open: {e}")
    out: dict[str, Any] = {"ordered": device.comm.ordered, "size": device.comm.size}
    for exchange, run in EXCHANGES.items():
        for kind in KINDS:
            for call, found in enumerate(_results(device, run, kind)):
                out[f"{exchange}, {kind}, {call}"] = (found.shape, found.ravel().tolist())
    out |= {f"{exchange}, uneven": _refusal(device, run) for exchange, run in UNEVEN.items()}
    Path(results).write_text(json.dumps(out))
    device.close()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
