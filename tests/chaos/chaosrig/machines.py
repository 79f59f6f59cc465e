"""Runs the state machines of the block pool and the prefix cache until they have taken so many steps.

    python machines.py STEPS SEED

Prints one JSON object {"steps": ..., "machines": [...]}; a counter-example is printed by hypothesis, with exit status 1.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "engine" / "control"))
sys.path.insert(1, str(Path(__file__).parents[2] / "rigs"))
sys.path.insert(2, str(Path(__file__).parents[2]))

import test_block_pool
import test_prefix_cache
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

MACHINES = (test_block_pool.PoolMachine, test_prefix_cache.CacheMachine, test_prefix_cache.CollidingCacheMachine)


def counted(machine: Any, steps: list[int]) -> Any:
    class Counting(machine):
        def check_invariants(self, *args: Any, **kwargs: Any) -> None:
            steps[0] += 1
            super().check_invariants(*args, **kwargs)

    return Counting


def main() -> None:
    wanted, start = int(sys.argv[1]), int(sys.argv[2])
    steps, turn = [0], 0
    while steps[0] < wanted:
        machine = counted(MACHINES[turn % len(MACHINES)], steps)
        how = settings(
            max_examples=min(200, 1 + wanted // 100), stateful_step_count=60 if wanted < 100_000 else 300,
            deadline=None, database=None,
            phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        run_state_machine_as_test(seed(start * 1_000_003 + turn)(machine), settings=how)
        turn += 1
    print(json.dumps({"steps": steps[0], "machines": [m.__name__ for m in MACHINES]}))


if __name__ == "__main__":
    main()
