"""Every tiny model of tests/models with `--tp-invariant`, in bfloat16: tokens and log-probabilities of ranks and of one.

Ranks are threads of this process, with the kernels of a platform. Prints a line for a model that is refused or differs, and the
sums. Exit status 1: one differs.
Run: python ci/tp_bits.py [--ranks 2 4] [--platform cpu] [NAME ...]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "models")]


def main() -> int:
    from zoo import ALL, make_checkpoint

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--platform", default="cpu")
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for name in args.names or sorted(ALL):
            path = make_checkpoint(name, Path(folder) / name, tokenizer=False)
            for ranks, verdict, why in compare(path, args.ranks, args.platform):
                counts[verdict] += 1
                if verdict != "equal":
                    print(f"{name}, {ranks} ranks: {verdict} {why}", flush=True)
    print(f"ranks {args.ranks} of {args.platform}: " + ", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items())))
    return 1 if counts["differ"] else 0


def compare(path: Path, sizes: list[int], platform: str) -> list[tuple[int, str, str]]:
    """(ranks, "equal", "differ" or "refused", why) of each number of ranks."""
    from thread_ranks import Ring, run_ranks

    from thalweg.errors import ConfigError

    found, one = [], generate(path, platform, 0, None)
    for ranks in sizes:
        ring = Ring(ranks)
        ring.captures = False  # a recorded step holds no calls of threads
        try:
            each = run_ranks(ring, lambda rank, ring=ring: generate(path, platform, rank, ring))
            found.append((ranks, "equal" if all(got == one for got in each) else "differ", ""))
        except ConfigError as e:
            found.append((ranks, "refused", str(e)))
    return found


def generate(path: Path, platform: str, rank: int, comm: Any) -> list[Any]:
    """Tokens, and log-probabilities of tokens and prompts, of each sequence."""
    from rig import Rig
    from test_families import prompts

    from thalweg.hal.discovery import load
    from thalweg.hal.platform import Place

    device = load(platform).open(Place())
    if comm is not None:
        device.comm = comm
    rig = Rig(path, device=device, rank=rank, dtype="bfloat16", invariant=True, tp_invariant=True)
    return [(s.tokens, s.logprobs, s.scores) for s in rig.generate(prompts(), 6, chunk=8, budget=24)]


if __name__ == "__main__":
    sys.exit(main())
