"""`thalweg plan MODEL`: the resources to serve it, read only from its headers."""

from __future__ import annotations

import argparse
import json
from typing import Any

import msgspec

from thalweg.cli import common
from thalweg.engine.planning import checkpoint_config
from thalweg.engine.planning.memory import Plan, fewest_ranks, gib, plan
from thalweg.options.model import BUNDLED


def run(words: list[str]) -> int:
    """0: it fits. 1: it does not, and the plan says which flag to change."""
    namespace = common.parse("plan", words, _arguments, about="Resources to serve a model, computed without a device.")
    args = common.engine_args(namespace, namespace.model_tag)
    path = checkpoint_config.find(args)
    local = msgspec.structs.replace(args, model=str(path))
    result = plan(local)
    fewest = fewest_ranks(local) if result.devices > 1 or not result.fits else 1
    if namespace.json:
        print(json.dumps(as_json(result) | {"fewest_devices": fewest}, indent=2))
    else:
        print(as_text(result, args.model, fewest, args.pipeline_parallel_size))
    return 0 if result.fits else 1


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help=f"directory or hub id (left out: the {BUNDLED} model)")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def as_json(p: Plan) -> dict[str, Any]:
    names = Plan.__dataclass_fields__
    return {n: getattr(p, n) for n in names} | {"total": p.total, "fits": p.fits}


def as_text(p: Plan, name: str, fewest: int | None = 1, stages: int = 1) -> str:
    """fewest: tensor_parallel_size with which the model fits. None: there is none."""
    groups = ", ".join(map(_layers, p.groups))
    rows = [
        ("model", f"{name} ({p.architecture}), {p.dtype}"),
        ("computed", f"by {p.implementation}" + ("' own module" if p.implementation != "thalweg" else "")),
        ("device", f"{p.platform}: {f'{p.devices} x ' if p.devices > 1 else ''}{p.device}, {gib(p.device_bytes)}"),
        ("weights", f"{gib(p.weights)} in memory" + (f", {gib(p.stored_bytes)} in files" if p.stored_bytes else "")),
        ("loading", f"{gib(p.loading)} at the fullest, before there is a cache"),
        ("KV cache", f"{gib(p.kv_cache)}: {p.tokens} tokens of {gib(p.kv_per_token)} each; layers: {groups}"),
        *(("", _group(g)) for g in p.groups if len(p.groups) > 1),
        ("history", gib(p.history)),
        ("workspace", f"{gib(p.workspace)}, estimated, for steps of {p.max_num_batched_tokens} tokens"),
        *([("talker", f"{gib(p.talker)}, weights and cache")] if p.talker else []),
        *([("adapters", f"{gib(p.adapters)}, all slots")] if p.adapters else []),
        ("total", f"{gib(p.total)}, besides the framework's own"),
        ("fits", f"{p.sequences} sequences of {p.max_model_len} tokens at once (--max-num-seqs {p.max_num_seqs})"),
    ]
    if p.devices > 1 or fewest not in (1, p.devices):
        least = f"{fewest} is the smallest that fits" if fewest else "no size that was tried fits"
        each = "; sizes are those of each rank" if p.devices > 1 else ""
        flags = "--tensor-parallel-size" if stages == 1 else f"--tensor-parallel-size, in {stages} stages"
        rows.insert(3, ("ranks", f"{p.devices} ({flags}){each}; {least}"))
    lines = [f"{a:10} {b}" for a, b in rows]
    lines += [f"does not fit: {x}" for x in p.problems] + [f"advice: {x}" for x in p.advice]
    return "\n".join(lines)


def _layers(group: dict[str, Any]) -> str:
    return f"{group['layers']} {group['kind']}" + (f" ({group['window']})" if group["window"] else "")


def _group(group: dict[str, Any]) -> str:
    each = f"one for every {group['block_tokens']} tokens" if group["block_tokens"] else "one for every sequence"
    return f"{_layers(group)}: {group['blocks']} blocks of {gib(group['bytes_per_block'])}, {each}"
