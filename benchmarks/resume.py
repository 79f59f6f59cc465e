"""How long streams pause when the engine process is killed: from the kill to each stream's next token.

python benchmarks/resume.py [--streams 32] [--kills 3] [--pause 6] [--no-standby] [--model DIR] [--device cpu]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import time

from thalweg import AsyncLLM, EngineArgs, SamplingParams
from thalweg.params import RequestOutputKind


async def main(args: argparse.Namespace) -> dict:
    engine = await AsyncLLM.start(
        EngineArgs(
            model=args.model,
            device=args.device,
            use_tqdm_on_load=False,
            max_restarts=args.kills,
            standby_engine=not args.no_standby,
        )
    )
    arrivals: list[list[float]] = [[] for _ in range(args.streams)]

    async def stream(i: int) -> None:
        params = SamplingParams(max_tokens=100_000, ignore_eos=True, temperature=1, seed=i, output_kind=RequestOutputKind.DELTA)
        async for _ in engine.generate(f"Stone number {i} lies", params, f"s{i}"):
            arrivals[i].append(time.monotonic())

    tasks = [asyncio.create_task(stream(i)) for i in range(args.streams)]
    firsts, lasts = [], []
    for _ in range(args.kills):
        await asyncio.sleep(args.pause)
        killed = time.monotonic()
        os.kill(engine.engine_pid, signal.SIGKILL)
        while not all(a and a[-1] > killed + 0.05 for a in arrivals):
            await asyncio.sleep(0.02)
        resumed = [next(t for t in a if t > killed + 0.05) - killed for a in arrivals]
        firsts.append(min(resumed))
        lasts.append(max(resumed))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await engine.shutdown()
    return {
        "streams": args.streams, "kills": args.kills, "first_stream_resumes_s": round(statistics.median(firsts), 3),
        "last_stream_resumes_s": round(statistics.median(lasts), 3), "worst_s": round(max(lasts), 3),
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--pause", type=float, default=6.0, help="seconds before each kill")
    parser.add_argument("--no-standby", action="store_true", help="without a process that stands by")
    parser.add_argument("--model", default="thalweg-nano")
    parser.add_argument("--device", default="cpu")
    print(json.dumps(asyncio.run(main(parser.parse_args()))))
