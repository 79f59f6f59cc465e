"""Every tiny model of tests/models divided among ranks, against transformers: greedy tokens in float32.

Starts the ranks as processes, each with one device of the platform, and runs the models one after another, in mixed batches of
chunks and decodes. Prints a line for a model that is refused or differs, and the sums. Exit status 1: one differs.
Run: python ci/tp_zoo.py [--ranks 2] [--stages 1] [--platform cpu] [--enable-expert-parallel] [NAME ...]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1] / "tests" / "models"
NEW = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--platform", default="cpu")
    parser.add_argument("--stages", type=int, default=1, help="pipeline stages, one after another in each rank's process")
    parser.add_argument("--enable-expert-parallel", action="store_true", help="only mixtures, with whole experts on ranks")
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank >= 0:
        return run_rank(args)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, *sys.argv[1:], "--folder", folder, "--rank"]
        others = [subprocess.Popen([*words, str(r)], env=environment) for r in range(1, args.ranks)]
        try:
            return subprocess.run([*words, "0"], env=environment, check=False).returncode
        finally:
            for each in others:
                each.kill()
                each.wait()


def run_rank(args: Any) -> int:
    sys.path.append(str(TESTS))
    import torch
    from rig import Rig, StagedRig
    from test_families import prompts
    from zoo import ALL, load_reference, make_checkpoint

    from thalweg.errors import ConfigError
    from thalweg.hal.discovery import load
    from thalweg.hal.platform import RENDEZVOUS, Place

    torch.set_num_threads(1)
    folder, lead = Path(args.folder), args.rank == 0
    names = args.names or sorted(ALL)
    meet = folder / "meet"
    for each in (meet, folder / str(args.rank)):
        each.mkdir(exist_ok=True)
    # Before torch knows of ranks, as transformers then writes files on the first one only.
    paths = {name: make_checkpoint(name, folder / str(args.rank), tokenizer=False) for name in names}
    if args.enable_expert_parallel:
        paths = {name: path for name, path in paths.items() if has_experts(path)}
    place = Place(args.rank, args.ranks, (args.rank,), {RENDEZVOUS: f"file://{meet}"}) if args.ranks > 1 else Place()
    device = load(args.platform).open(place)
    counts = {"equal": 0, "differ": 0, "failed": 0, "refused": 0}
    for name, path in paths.items():
        try:
            more = {"device": device, "rank": args.rank, "expert_parallel": args.enable_expert_parallel}
            rig = StagedRig(path, args.stages, **more) if args.stages > 1 else Rig(path, **more)
            seqs = rig.generate(prompts(), NEW, chunk=6, budget=17)
        except Exception as e:  # the same on every rank
            verdict = "refused" if isinstance(e, ConfigError) else "failed"
            words = f"{type(e).__name__}: {e}".replace("\n", "; ")
        else:
            device.comm.all_reduce(torch.zeros(1))
            if not lead:
                continue
            oracle = load_reference(path, torch.float32)
            with torch.inference_mode():
                best = [oracle(torch.tensor([s.tokens])).logits[0, s.prompt - 1 : -1].argmax(-1).tolist() for s in seqs]
            verdict = "equal" if all(s.tokens[s.prompt :] == b for s, b in zip(seqs, best, strict=True)) else "differ"
            words = ""
        counts[verdict] += 1
        if lead and verdict != "equal":
            print(f"{name}: {verdict} {words}", flush=True)
    if lead:
        stages = f", {args.stages} stages" if args.stages > 1 else ""
        print(f"{args.ranks} ranks{stages} of {args.platform}: " + ", ".join(f"{n} {verdict}" for verdict, n in counts.items()))
    return 1 if counts["differ"] or counts["failed"] else 0


def has_experts(path: Path) -> bool:
    from thalweg.checkpoint.config import read_config
    from thalweg.models.expert_parallel import moe_of
    from thalweg.models.registry import declare

    return any(moe_of(layer.ffn) for layer in declare(read_config(path), path)[1].layers)


if __name__ == "__main__":
    sys.exit(main())
