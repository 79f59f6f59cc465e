"""Compile whole steps for TPU generations with libtpu, on a host without one, and print what the compiler says of their memory.

    python ci/tpu/compile.py [--length 131072] [--chips v5e v6e v7x] [--models 1b 8b] [--ranks 1 4] [--json FILE [--resume]]
    python ci/tpu/compile.py --small                                # two layers, one chip, one device: minutes

Needs libtpu (`pip install 'jax[tpu]'`, 700 MB) beside the test environment, which is why it is no test. Nothing is executed.
Sequences and tokens of a step, and how many blocks the cache has, are what the engine would choose there by default, so what is
compiled is what a server would run. With fewer layers than the model has (`--layers`), each layer's kernels are still those of
the whole model: shapes, tables and cache are the same.

One line per step as it is compiled. Exit status 1 if one is refused, or needs more memory for temporaries than the
engine sets aside (`planned`, Platform.workspace). What the engine itself would refuse, because the weights leave no room
for a cache, is skipped and said. With --json the file is written after each step; --resume takes from it what was
compiled of the same code.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

import jax
from jax.experimental import topologies
from tpu_steps import LLAMA_1B, LLAMA_8B, TOPOLOGIES, step_of

from thalweg.backends.tpu import SPARE, TpuPlatform
from thalweg.backends.tpu.kinds import KINDS
from thalweg.backends.tpu.mesh import Ranks
from thalweg.config import EngineArgs, SchedulerConfig
from thalweg.engine.planning.memory import Plan, plan, step_sizes
from thalweg.hal.step import Features, StepShape
from thalweg.models.registry import family

ROOT = Path(__file__).parents[2]
MODELS = {"1b": LLAMA_1B, "8b": LLAMA_8B}
STEPS = ("decode-1", "decode", "decode-top-p", "prefill")
SMALL = {"chips": ["v6e"], "models": ["1b"], "ranks": [1], "steps": ["decode", "prefill"], "layers": 2}
COLUMNS = ("chip", "model", "ranks", "step", "length", "arguments", "temporaries", "planned", "of HBM", "kernels", "seconds")
ROW = "{:5} {:5} {:>5} {:13} {:>7} {:>11} {:>11} {:>9} {:>6} {:>7} {:>7}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", nargs="+", type=int, default=[131072], help="tokens of a sequence (default: %(default)s)")
    parser.add_argument("--chips", nargs="+", choices=TOPOLOGIES, default=["v5e", "v6e", "v7x"])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["1b", "8b"])
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 4], help="devices that share the model")
    parser.add_argument("--layers", type=int, help="fewer layers than the model has, to compile faster")
    parser.add_argument("--small", action="store_true", help=f"every night's: {SMALL}")
    parser.add_argument("--json", type=Path, help="write the records there")
    parser.add_argument("--resume", action="store_true", help="leave out what the file of --json has of the same code")
    args = parser.parse_args()
    if args.resume and not args.json:
        parser.error("--resume: name the file of records with --json")
    if args.small:
        vars(args).update(SMALL)
    records = json.loads(args.json.read_text()) if args.resume and args.json.exists() else []
    done = {key(r): r for r in records if "error" not in r}
    code, records = code_now(), []
    print(ROW.format(*COLUMNS), flush=True)
    for case in cases(args):
        case["code"] = code
        record = done.get(key(case)) or case | tried(case)
        print(shown(record), flush=True)
        records.append(record)
        if args.json:
            args.json.write_text(json.dumps([*records, *(r for k, r in done.items() if r not in records)], indent=1) + "\n")
    wrong = sum("error" in r for r in records)
    skipped = sum("skipped" in r for r in records)
    print(f"{len(records) - wrong - skipped} compiled, {skipped} skipped, {wrong} refused")
    return int(wrong > 0)


def cases(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What is to be compiled: the smallest models first."""
    for length in args.length:
        for model in args.models:
            layers = min(args.layers or sys.maxsize, MODELS[model]["num_hidden_layers"])
            for ranks in args.ranks:
                for chip in args.chips:
                    for step in args.steps:
                        yield {"chip": chip, "model": model, "ranks": ranks, "step": step, "length": length, "layers": layers}


def key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(record[n] for n in ("chip", "model", "ranks", "step", "length", "layers", "code"))


def code_now() -> str:
    """Of the code a step is made of, and of the compiler: what a record is true of."""
    rooms = [ROOT / "thalweg" / r for r in ("hal", "models", "backends/tpu", "quantization")]
    files = sorted(f for r in (*rooms, Path(__file__).parent) for f in r.rglob("*.py"))
    text = b"".join(f.read_bytes() for f in files)
    return f"{hashlib.sha256(text).hexdigest()[:12]}, jax {version('jax')}, libtpu {version('libtpu')}"


def tried(case: Mapping[str, Any]) -> dict[str, Any]:
    """Every combination is tried, and each refusal told."""
    try:
        fits = planned(case)
        if not fits.fits:
            return {"skipped": "the engine would not start: " + fits.problems[0]}
        result = compiled(case, fits)
    except Exception as e:
        return {"error": f"{type(e).__name__}: {str(e)[:500]}"}
    if result["temporaries"] > result["planned"]:
        result["error"] = f"temporaries take {result['temporaries']} bytes, and the engine sets {result['planned']} aside"
    return result


def planned(case: Mapping[str, Any]) -> Plan:
    """What the engine would do with the whole model and no flags but the length."""
    config = MODELS[case["model"]] | {"max_position_embeddings": case["length"]}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        return plan(
            EngineArgs(
                model=folder, device="tpu", dtype="bfloat16", load_format="dummy", tensor_parallel_size=case["ranks"],
                additional_config={"kind": case["chip"]},
            )
        )  # fmt: skip


def shape_of(step: str, length: int, fits: Plan) -> tuple[StepShape, Features]:
    """The engine's largest bucket of this kind, for a server of its default size."""
    seqs, blocks = fits.max_num_seqs, -(-length // fits.block_tokens)
    plain = Features(random=True)
    return {
        "decode-1": (StepShape(1, 1, blocks, uniform=True), plain),
        "decode": (StepShape(seqs, seqs, blocks, uniform=True), plain),
        "decode-top-p": (StepShape(seqs, seqs, blocks, uniform=True), Features(random=True, truncate=True, logprobs=20)),
        "prefill": (StepShape(fits.max_num_batched_tokens, seqs + SPARE, blocks), plain),
    }[step]


def compiled(case: Mapping[str, Any], fits: Plan) -> dict[str, Any]:
    """Per device, in bytes: parameters and state (donated ones once), temporaries beside them, the program."""
    start = time.monotonic()
    config = MODELS[case["model"]] | {"num_hidden_layers": case["layers"], "max_position_embeddings": case["length"]}
    ranks = Ranks(topologies.get_topology_desc(TOPOLOGIES[case["chip"]], "tpu").devices[: case["ranks"]])
    shape, features = shape_of(case["step"], case["length"], fits)
    step, shapes = step_of(
        config,
        shape,
        features=features,
        max_len=case["length"],
        ranks=ranks,
        blocks=fits.blocks,
        block_tokens=fits.block_tokens,
    )
    result = step.lower(*shapes).compile()
    memory, text = result.memory_analysis(), result.as_text()
    schedule = SchedulerConfig(max_seqs=fits.max_num_seqs, token_budget=fits.max_num_batched_tokens)
    sizes = step_sizes(family(config)(config), schedule, case["length"], "bfloat16", ranks.size, batch_invariant=False)
    return {
        "tokens": shape.tokens, "seqs": shape.seqs, "table": shape.blocks, "cache_blocks": fits.blocks,
        "arguments": memory.argument_size_in_bytes, "temporaries": memory.temp_size_in_bytes,
        "planned": TpuPlatform().workspace(sizes), "program": memory.generated_code_size_in_bytes,
        "aliased": memory.alias_size_in_bytes, "kernels": text.count("tpu_custom_call"),
        "all_reduces": text.count(" all-reduce("), "seconds": round(time.monotonic() - start, 1),
    }  # fmt: skip


def shown(r: Mapping[str, Any]) -> str:
    first = [r["chip"], r["model"], r["ranks"], r["step"], r["length"]]
    for why in ("error", "skipped"):
        if why in r:
            reported = {"error": "REFUSED", "skipped": "skipped:"}[why]
            return " ".join(ROW.split()[:5]).format(*first) + f" {reported} {r[why]}"
    mib = [f"{r[k] / (1 << 20):.0f} MiB" for k in ("arguments", "temporaries", "planned")]
    share = (r["arguments"] + r["temporaries"]) / KINDS[r["chip"]].memory_bytes
    return ROW.format(*first, *mib, f"{share:.0%}", r["kernels"], r["seconds"])


if __name__ == "__main__":
    jax.config.update("jax_enable_compilation_cache", False)
    sys.exit(main())
