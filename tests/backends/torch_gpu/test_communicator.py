"""Collectives of two processes, against what numpy says they are."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch

from thalweg.backends.torch_comm import TorchCommunicator
from thalweg.errors import DeviceError
from thalweg.hal.platform import RENDEZVOUS, Place

SIZE = 2


def _mine(rank: int) -> torch.Tensor:
    return torch.arange(24, dtype=torch.float32).view(4, 6) * (rank + 1) + rank


def _rank(rank: int, where: str, results: Any) -> None:
    torch.set_num_threads(1)
    comm = TorchCommunicator("gloo", Place(rank, SIZE, (rank,), {RENDEZVOUS: where}), timeout=60)
    x = _mine(rank)
    out = {
        "reduce": comm.all_reduce(x.clone()), "transposed": comm.all_reduce(x.t()),
        "half": comm.all_reduce(x.to(torch.bfloat16)),
        "gather": comm.all_gather(x), "rows": comm.all_gather(x, 0), "strided": comm.all_gather(x.t(), 0),
        "scatter": comm.reduce_scatter(x), "scatter rows": comm.reduce_scatter(x, 0), "all to all": comm.all_to_all(x),
        "columns": comm.all_to_all(x, 1),
    }  # fmt: skip
    results.put((rank, comm.size, {k: v.float().tolist() for k, v in out.items()}))
    comm.close()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, torch.Tensor]]:
    where = f"file://{tmp_path_factory.mktemp('meet') / 'here'}"
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_rank, args=(r, where, results)) for r in range(SIZE)]
    for p in processes:
        p.start()
    try:
        got = sorted(results.get(timeout=60) for _ in processes)
    finally:
        for p in processes:
            p.kill()
    for p in processes:
        p.join(30)
    assert [size for _, size, _ in got] == [SIZE] * SIZE
    return [{k: torch.tensor(v) for k, v in out.items()} for _, _, out in got]


a, b = _mine(0), _mine(1)
WANT = {
    "reduce": (a + b, a + b), "transposed": ((a + b).t(), (a + b).t()),
    "half": ((a.bfloat16() + b.bfloat16()).float(),) * 2, "gather": (torch.cat([a, b], 1),) * 2,
    "rows": (torch.cat([a, b], 0),) * 2, "strided": (torch.cat([a.t(), b.t()], 0),) * 2,
    "scatter": ((a + b)[:, :3], (a + b)[:, 3:]), "scatter rows": ((a + b)[:2], (a + b)[2:]),
    "all to all": (torch.cat([a[:2], b[:2]]), torch.cat([a[2:], b[2:]])),
    "columns": (torch.cat([a[:, :3], b[:, :3]], 1), torch.cat([a[:, 3:], b[:, 3:]], 1)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", WANT)
def test_a_collective_gives_every_rank_its_share(name: str, ranks: list[dict[str, torch.Tensor]]) -> None:
    for rank in range(SIZE):
        torch.testing.assert_close(ranks[rank][name], WANT[name][rank], rtol=0, atol=0)


def test_a_missing_meeting_place_a_missing_library_and_absent_ranks_are_told_in_words() -> None:
    with pytest.raises(DeviceError, match="rank 1 of 2 has no address where the ranks meet"):
        TorchCommunicator("gloo", Place(1, 2, (1,)))
    place = Place(0, 2, (0,), {RENDEZVOUS: "file:///nowhere"})
    absent = next(name for name in ("nccl", "xccl") if not torch.distributed.is_backend_available(name))  # no torch has both
    with pytest.raises(DeviceError, match=f"this torch has no {absent}"):
        TorchCommunicator(absent, place)


@pytest.mark.slow
def test_ranks_that_never_come_are_given_up_on(tmp_path: Path) -> None:
    place = Place(0, 2, (0,), {RENDEZVOUS: f"file://{tmp_path / 'alone'}"})
    with pytest.raises(DeviceError, match="rank 0 of 2 could not join the others"):
        TorchCommunicator("gloo", place, timeout=1)
