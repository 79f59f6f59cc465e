"""Random schemas through the whole engine: every answer that ended is valid, and is the same however the engine fared.

    python tests/rigs/schemas.py --schemas 1000 --seed 0 --model hash

Every schema is asked of two engines, each time with n = 3. One has room for all, and pipelines nothing. The other launches
two steps ahead, jumps, and has a cache so small that sequences are preempted. It is killed (SIGKILL) again and again. The texts
must be equal. Those that ended by themselves must satisfy the schema, by jsonschema, and no object may have a key twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from random_schemas import fault, random_schema

from thalweg import AsyncLLM, EngineArgs, SamplingParams, StructuredOutputsParams
from thalweg.errors import RequestError, ThalwegError

AT_ONCE = 64
"""Schemas that are asked together."""
MAX_TOKENS = 200
COMMON: dict[str, Any] = {
    "max_model_len": 256,
    "max_num_seqs": 48,
    "use_tqdm_on_load": False,
}
DEVICES: dict[str, dict[str, Any]] = {
    "hash": {"device": "null"},
    "nano": {"device": "cpu", "threads": 1},
    "hosted": {"device": "thalweg.backends.torch_gpu.testing:HostGpuPlatform", "additional_config": {"late": False}},
}
"""nano: the bundled model, which `cpu` runs a step at a time. hosted: the same model two steps ahead, as on a GPU, and slow."""
Answer = list[tuple[str, str | None]] | str
"""Text and reason of each choice. Or why the request was refused, or ended with an error."""


@dataclass
class Tally:
    schemas: int = 0
    refused: int = 0
    answers: int = 0
    ended: int = 0
    cut: int = 0
    failed: int = 0
    """Requests that ended with an error: the grammar left no way to go on, or became too complex."""
    invalid: int = 0
    differing: int = 0
    preemptions: int = 0
    kills: int = 0
    faults: list[str] = field(default_factory=list)


async def ask(engine: AsyncLLM, number: int, schema: dict[str, Any], tally: Tally) -> Answer:
    asked = StructuredOutputsParams(json=schema, disable_any_whitespace=bool(number % 3))
    params = SamplingParams(n=3, temperature=1.0, seed=number, max_tokens=MAX_TOKENS, structured_outputs=asked)
    last = None
    try:
        async for out in engine.generate(f"Answer {number}:", params, f"r{number}"):
            last = out
    except RequestError as e:
        return f"refused: {e}"
    except ThalwegError as e:
        return f"failed: {e}"
    assert last is not None
    tally.preemptions += last.metrics.num_preemptions if last.metrics else 0
    return [(c.text, c.finish_reason) for c in last.outputs]


async def killed_while(engine: AsyncLLM, work: asyncio.Task[Any], rng: random.Random, kills: int) -> int:
    """Ends the engine's process so many times while there is work. How often it was done."""
    done = 0
    while done < kills and not work.done():
        await asyncio.sleep(rng.uniform(0.05, 0.4))
        if not work.done() and engine.engine_pid is not None and engine.ready:
            os.kill(engine.engine_pid, signal.SIGKILL)
            done += 1
    return done


async def run(schemas: list[dict[str, Any]], seed: int, model: str, kills_each: int = 1, say: bool = False) -> Tally:
    rng, tally, common = random.Random(seed), Tally(), COMMON | DEVICES[model]
    calm = await AsyncLLM.start(EngineArgs(async_scheduling=False, **common))
    tight = {"num_gpu_blocks_override": 60, "block_size": 16, "max_restarts": 1_000_000}
    jumps = {"enable_jump_forward": True}
    wild = await AsyncLLM.start(EngineArgs(async_scheduling=True, structured_outputs_config=jumps, **tight, **common))
    try:
        assert calm.config.scheduler.pipeline_depth == 1
        assert wild.config.scheduler.pipeline_depth == 1 + (model != "nano")
        for start in range(0, len(schemas), AT_ONCE):
            part = list(enumerate(schemas[start : start + AT_ONCE], start))
            quiet = await asyncio.gather(*(ask(calm, i, s, tally) for i, s in part))
            work = asyncio.ensure_future(asyncio.gather(*(ask(wild, i, s, tally) for i, s in part)))
            tally.kills += await killed_while(wild, work, rng, kills_each)
            loud = await work
            for (number, schema), one, other in zip(part, quiet, loud, strict=True):
                note(tally, number, schema, one, other)
            if say:
                print(f"{tally.schemas}: {len(tally.faults)} faults", file=sys.stderr, flush=True)
    finally:
        await calm.shutdown()
        await wild.shutdown()
    return tally


def note(tally: Tally, number: int, schema: dict[str, Any], one: Answer, other: Answer) -> None:
    tally.schemas += 1
    where = f"schema {number} {json.dumps(schema, ensure_ascii=False)}"
    if one != other:
        tally.differing += 1
        tally.faults.append(f"{where}\n  calm {one!r:.600}\n  wild {other!r:.600}")
    if isinstance(one, str):
        tally.refused += one.startswith("refused")
        tally.failed += one.startswith("failed")
        return
    for text, reason in one:
        tally.answers += 1
        tally.cut += reason == "length"
        tally.ended += reason == "stop"
        wrong = fault(text, schema) if reason == "stop" else None
        if wrong is not None:
            tally.invalid += 1
            tally.faults.append(f"{where}\n  answer {text!r}\n  {wrong}")


def schemas_of(seed: int, count: int) -> list[dict[str, Any]]:
    return [random_schema(random.Random(f"{seed}/{i}")) for i in range(count)]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", choices=list(DEVICES), default="hash")
    parser.add_argument("--kills", type=int, default=1, help=f"of the engine, for each {AT_ONCE} schemas")
    args = parser.parse_args(argv)
    begin = time.perf_counter()
    tally = asyncio.run(run(schemas_of(args.seed, args.schemas), args.seed, args.model, args.kills, say=True))
    for words in tally.faults:
        print(words)
    words = ", ".join(f"{name} {n}" for name, n in asdict(tally).items() if name != "faults")
    print(f"{'FAILED' if tally.faults else 'ok'}: {words}, seconds {time.perf_counter() - begin:.1f}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
