"""The scheduler over many simulated ranks, which die and hang: the rank at fault is named, and no token is wrong or lost."""

from __future__ import annotations

import pytest
from many_ranks import QUICK, SLOW, simulate_ranks


@pytest.mark.slow
def test_a_rank_that_ends_at_any_step_is_named_and_no_token_is_lost() -> None:
    total = simulate_ranks(0, 5, ranks=24)
    assert all(total[kind] for kind in QUICK)
    assert total["requests"]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_thousand_ranks_end_stop_and_hang() -> None:
    total = simulate_ranks(2, 4, ranks=1000, kinds=(*QUICK, *SLOW))
    assert all(total[kind] for kind in SLOW)
