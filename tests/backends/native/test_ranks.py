"""Ranks that exchange over shared memory: what a peer's end, an abort and a late rank do, and what recorded steps exchange."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from thalweg.backends.cpu.device import CpuDevice, open_device
from thalweg.backends.cpu.native import NoLibraryError, levels, open_library
from thalweg.backends.cpu.recording import RecordingExecutable
from thalweg.backends.cpu.shm import SLOT, ShmCommunicator
from thalweg.errors import DeviceError, PeerError
from thalweg.hal.comm import Communicator
from thalweg.hal.platform import RENDEZVOUS, Place
from thalweg.hal.step import SamplingArrays, StateBox, StepBatch, StepResult

SECONDS = 60
"""After which a test gives up on a rank."""


@pytest.fixture(autouse=True)
def _needs_kernels() -> None:
    try:
        levels()
    except NoLibraryError as e:
        pytest.skip(str(e))


def _place(rank: int, world: int, folder: Path) -> Place:
    return Place(rank, world, (rank,), {RENDEZVOUS: f"file://{folder}"})


def _run_rank(rank: int, world: int, folder: Path, work: Callable[..., Any], pipe: Any) -> None:
    torch.set_num_threads(1)
    comm = ShmCommunicator(open_library(1), _place(rank, world, folder), timeout=SECONDS)
    try:
        pipe.send(work(comm, rank, pipe))
    except PeerError as e:
        pipe.send((e.rank, str(e)))


class Ranks:
    """Processes that each run a function of this module with (communicator, rank, pipe)."""

    def __init__(self, world: int, folder: Path, work: Callable[..., Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for rank in range(world):
            ours, theirs = context.Pipe()
            self.pipes.append(ours)
            self.processes.append(context.Process(target=_run_rank, args=(rank, world, folder, work, theirs)))
            self.processes[-1].start()

    def hear(self, rank: int) -> Any:
        assert self.pipes[rank].poll(SECONDS), f"rank {rank} says nothing"
        return self.pipes[rank].recv()

    def close(self) -> None:
        for p in self.processes:
            p.kill()
            p.join(SECONDS)


@pytest.fixture
def start(tmp_path: Path) -> Any:
    started: list[Ranks] = []

    def run(world: int, work: Callable[..., Any]) -> Ranks:
        started.append(Ranks(world, tmp_path, work))
        return started[-1]

    yield run
    for ranks in started:
        ranks.close()


def _wait(comm: Communicator, rank: int, pipe: Any) -> Any:
    """The last rank stays away from the second exchange."""
    comm.all_reduce(torch.ones(4))
    pipe.send("met")
    if rank == comm.size - 1:
        signal.pause()
    comm.all_reduce(torch.ones(4))
    return None


@pytest.mark.slow
def test_ranks_that_wait_for_one_that_is_killed_get_an_error_that_names_it(start: Any, tmp_path: Path) -> None:
    """Its parent has not noticed its end: it is a zombie still."""
    ranks = start(3, _wait)
    assert [ranks.hear(r) for r in range(3)] == ["met"] * 3
    assert list(tmp_path.iterdir()) == [], "nothing is left from the moment on that all have met"
    os.kill(ranks.processes[2].pid, signal.SIGKILL)
    for rank in (0, 1):
        assert ranks.hear(rank) == (2, f"rank 2 of 3 ended: rank {rank} cannot go on without it")


def _abort(comm: Communicator, rank: int, pipe: Any) -> Any:
    import threading

    comm.all_reduce(torch.ones(4))
    if rank == 0:
        threading.Timer(0.2, comm.abort).start()
    else:
        signal.pause()
    comm.all_reduce(torch.ones(4))
    return None


def _differ(comm: Communicator, rank: int, pipe: Any) -> Any:
    comm.all_reduce(torch.ones(4 + rank))
    return None


@pytest.mark.slow
@pytest.mark.parametrize(("work", "words"), [(_abort, "when the group was aborted"), (_differ, "made another call")])
def test_an_exchange_that_is_aborted_or_differs_between_ranks_fails_in_words(work: Any, words: str, start: Any) -> None:
    rank, said = start(2, work).hear(0)
    assert rank == 1
    assert words in said


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"rank 1 of 2 did not come to .* within 0\.05 s"):
        ShmCommunicator(open_library(1), _place(0, 2, tmp_path), timeout=0.05)
    with pytest.raises(DeviceError, match="has no address where the ranks meet"):
        ShmCommunicator(open_library(1), Place(0, 2))
    with pytest.raises(DeviceError, match="meet in a folder of one machine"):
        ShmCommunicator(open_library(1), Place(0, 2, (0,), {RENDEZVOUS: "tcp://127.0.0.1:1"}))


def _exchange_much(comm: Communicator, rank: int, pipe: Any) -> Any:
    """More than a slot holds, of rows that end within exchanges."""
    x = torch.arange(3 * (SLOT // 4 + 5), dtype=torch.float32).view(3, -1) % 1000
    total, joined = comm.all_reduce(x * (rank + 1)), comm.all_gather(x + rank, 1)
    same = torch.equal(total, x * 3) and torch.equal(joined, torch.cat([x, x + 1], 1))
    halves = comm.all_reduce(torch.full((7,), float("nan") if rank else 1.0, dtype=torch.bfloat16))
    return same, bool(halves.isnan().all()), comm.all_reduce(torch.tensor([2**40 + rank])).tolist()


@pytest.mark.slow
def test_messages_larger_than_a_slot_and_other_types_are_exchanged_whole(start: Any) -> None:
    ranks = start(2, _exchange_much)
    assert [ranks.hear(r) for r in range(2)] == [(True, True, [2**41 + 1])] * 2


def _batch(call: int) -> StepBatch:
    one, each = np.ones(2, np.int32), np.arange(2, dtype=np.int32)
    return StepBatch(
        tokens=one * call, token_seq=each, positions=one * 0, slots=each + 1, context=one * 0, query=one,
        last_row=each, emit=one.astype(bool), block_tables=(np.zeros((2, 1), np.int32),),
        sampling=SamplingArrays.greedy(2), uniform=1,
    )  # fmt: skip


def _steps(comm: Any, rank: int, pipe: Any) -> Any:
    """Results and exchanges of six steps as written, as recorded, and as a communicator that cannot be recorded has them."""
    device = open_device(1)
    library = device._library
    assert library is not None
    comm._library, library.describe_failure = library, comm.describe_failure
    out = []
    for record, captures in ((False, True), (True, True), (True, False)):
        comm.captures = captures
        made = CpuDevice(device.info, (), (), library, record, comm)

        def step(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
            x = params * batch.tokens[:, None]
            total = comm.all_gather(comm.all_reduce(x + 0) * 2)
            return state, StepResult(batch.slots[:, None], batch.query, extras={"x": total})

        run = made.compile(step, torch.tensor([[1.0, 2.0]]) * (rank + 1), StateBox(torch.zeros(1)), None, None)
        before, replays = comm.exchanges, 0
        results = [run(_batch(i)).result().extras["x"].tolist() for i in range(6)]
        if isinstance(run, RecordingExecutable):
            replays = sum(not isinstance(t, str) for t in run._tapes.values())
        out.append((results, comm.exchanges - before, replays))
    return out


@pytest.mark.slow
def test_recorded_steps_exchange_as_often_and_to_the_same_results_as_steps_as_written(start: Any) -> None:
    """A replay that skips what its communicator does gives an old result, and makes no exchange."""
    ranks = start(2, _steps)
    written, recorded, uncaptured = ranks.hear(0)
    assert ranks.hear(1) == [written, recorded, uncaptured]
    want = [[[6.0 * i, 12.0 * i] * 2] * 2 for i in range(6)]
    assert written == (want, 12, 0)
    assert recorded == (want, 12, 1)
    assert uncaptured == (want, 12, 0)
