"""Exchanges between ranks, each in the process that the platform puts it in, as steps run them: written, recorded or captured,
and replayed. Every call brings other values, so a replay that skips an exchange gives an old answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from thalweg.hal.platform import RENDEZVOUS, Parallel, Platform
from thalweg.hal.testing import exchanges
from thalweg.hal.testing.exchanges import CALLS, EXCHANGES, KINDS, ROWS, UNEVEN, WIDTH

SECONDS = 300
"""For all ranks' processes."""


@pytest.fixture(scope="module", params=[2, 4], ids=lambda n: f"{n}-ranks")
def results(request: pytest.FixtureRequest, platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The findings of every process. Places that this machine has too few devices for are skipped."""
    places = platform.topology(Parallel(tensor=request.param)).places
    if not platform.runs_models or (len(places) > 1 and not platform.supports_ranks):
        pytest.skip(f"platform {platform.name} has no ranks")
    folder: Path = tmp_path_factory.mktemp("ranks")
    (folder / "meet").mkdir()
    command = [
        sys.executable, "-m", exchanges.__name__, request.config.getoption("--platform"),
        request.config.getoption("--platform-options"),
    ]  # fmt: skip
    processes = []
    for p in places:
        environment = {**p.environment, RENDEZVOUS: f"file://{folder / 'meet'}"}
        place = json.dumps({"rank": p.rank, "world": p.world, "devices": p.devices, "environment": environment})
        to = folder / f"{p.rank}.json"
        processes.append(subprocess.Popen([*command, place, str(to)], stderr=subprocess.PIPE, text=True))
    try:
        words = [process.communicate(timeout=SECONDS)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if not platform.shares_device and (why := next((w for w in words if w.startswith("cannot open: ")), "")):
        pytest.skip(why)
    assert [process.returncode for process in processes] == [0] * len(places), words
    return [json.loads((folder / f"{p.rank}.json").read_text()) for p in places]


def _sum(parts: Any) -> torch.Tensor:
    """The contract's: in float32, in rank order, rounded once."""
    total = parts[0].to(torch.float32)
    for part in parts[1:]:
        total = total + part.to(torch.float32)
    rounded: torch.Tensor = total.to(parts[0].dtype)
    return rounded


def _want(name: str, x: torch.Tensor, ranks: int) -> torch.Tensor:
    """Of x [ROWS, ranks * WIDTH]."""
    parts = [x[:, r * WIDTH : (r + 1) * WIDTH] for r in range(ranks)]
    match name:
        case "reduce" | "scatter" | "scatter rows":
            return _sum(parts)
        case "reduce one row":
            return _sum(parts)[:1]
        case "reduce no row":
            return _sum(parts)[:0]
        case "reduce twice":
            return _sum([_sum(parts) * 0.5] * ranks)
        case "gather the middle":
            return x.reshape(ROWS, ranks, WIDTH)
        case "gather no row":
            return x[:0]
        case "all to all":
            step = ROWS // ranks
            return torch.cat([p[i * step : (i + 1) * step] for i in range(ranks) for p in parts])
        case _:
            return x


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EXCHANGES)
def test_an_exchange_executes_to_the_contract_on_every_rank_in_every_call(name: str, kind: str, results: list[Any]) -> None:
    ranks = results[0]["size"]
    for call in range(CALLS):
        x = exchanges.table(ranks)[torch.from_numpy(exchanges.tokens(call)).long()].to(getattr(torch, kind))
        want = _want(name, x, ranks).to(torch.float32).numpy()
        for rank, found in enumerate(results):
            shape, numbers = found[f"{name}, {kind}, {call}"]
            got, place = np.array(numbers, np.float32).reshape(shape), f"rank {rank}, call {call}"
            if "gather" not in name and not found["ordered"]:
                bound = np.abs(want).max(initial=1.0) * ranks * (1e-2 if kind == "bfloat16" else 1e-5)
                np.testing.assert_allclose(got, want, rtol=0, atol=bound, err_msg=place)
            else:
                np.testing.assert_array_equal(got, want, err_msg=place)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_executes_to_the_same_sum_in_any_batch(kind: str, results: list[Any]) -> None:
    for found in results:
        if not found["ordered"]:
            pytest.skip("a library chooses the order of its sums")
        for call in range(CALLS):
            assert found[f"reduce, {kind}, {call}"][1][:WIDTH] == found[f"reduce one row, {kind}, {call}"][1]


@pytest.mark.parametrize("name", UNEVEN)
def test_what_has_no_equal_parts_executes_to_a_refusal_in_words(name: str, results: list[Any]) -> None:
    for found in results:
        assert "equal parts, one for each rank" in found[f"{name}, uneven"]
