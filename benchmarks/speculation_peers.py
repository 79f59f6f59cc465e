"""What drafts bring next to other engines: one pair of models, with a draft model and without, in thalweg, llama.cpp, OpenVINO.

    python benchmarks/speculation_peers.py [--acceptance 0.7] [--tokens 3] [--layers N] [--vocab N] [--draft-layers 2]
                                           [--new 128] [--repeats 3] [--engines thalweg llamacpp openvino mtp]
                                           [--envs DIR] [--work DIR]

The models have the shape of Qwen3-0.6B, random weights, and drafts that are right as often as --acceptance says
(`speculation_pairs`). "mtp" is thalweg with a module for multi-token prediction in a model of that shape. Engines run one
greedy request of one sequence on --threads threads, with drafts and without in turn. `python -m benchmarks.peers install`
installs the others. Those that are not installed are reported, and left out.

Ratios are of medians, by CPU time of the engine's processes ("cpu"), and by the clock ("wall"). "allowed" is what the bytes of
weights would allow: a step reads the target's once, and the drafter's once for each draft. "accepted" are tokens of a step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from speculation_pairs import make_draft_pair, make_mtp_model, read_bytes

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.peers import engines
from benchmarks.peers.models import prepared
from benchmarks.peers.session import PeerError, Session, launch

PROMPT = 32
ENGINES = ("thalweg", "llamacpp", "openvino", "mtp")
ENVS = Path("~/.cache/thalweg-peers")


@dataclass(frozen=True, slots=True)
class Case:
    """An engine's models in the form that it reads."""

    name: str
    target: Path
    draft: Path | None
    driver: str
    python: Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    add("--acceptance", type=float, default=0.7, help="share of tokens after which a draft is right")
    add("--tokens", type=int, default=3, help="drafts of a step")
    add("--layers", type=int, help="layers of the target; default: those of the shape")
    add("--vocab", type=int, help="another vocabulary size")
    add("--draft-layers", type=int, default=2)
    add("--new", type=int, default=128, help="tokens of an answer")
    add("--repeats", type=int, default=3)
    add("--threads", type=int, default=1)
    add("--envs", type=Path, default=ENVS, help=f"folder of the other engines' environments (default {ENVS})")
    add("--work", type=Path, help="folder that keeps the models; default: a temporary one")
    a = parser.parse_args()
    if not 0 < a.acceptance < 1 or min(a.tokens, a.draft_layers, a.repeats, a.threads) < 1 or a.new < 2:
        parser.error("--acceptance must be between 0 and 1, other numbers at least 1, and --new at least 2")
    with tempfile.TemporaryDirectory() as scratch:
        work = a.work or Path(scratch)
        report = {name: attempt(a, work, name) for name in a.engines}
    print(json.dumps(report, indent=2))


def attempt(a: argparse.Namespace, work: Path, name: str) -> dict[str, Any]:
    """As `measure`. An engine that fails does not end the others."""
    try:
        return measure(a, work, name)
    except (PeerError, subprocess.CalledProcessError) as e:
        print(f"{name:10} failed: {e}", file=sys.stderr, flush=True)
        return {"failed": str(e)[:300]}


def measure(a: argparse.Namespace, work: Path, name: str) -> dict[str, Any]:
    """The figures of an engine, or why there are none."""
    envs = a.envs.expanduser().resolve()
    if name in ("llamacpp", "openvino") and not (envs / name / "peer.json").exists():
        why = f"not installed: python -m benchmarks.peers install {name} --envs {a.envs}"
        print(f"{name:10} {why}", file=sys.stderr, flush=True)
        return {"skipped": why}
    case = prepare(a, work, envs, name)
    prompt = np.random.default_rng(1).integers(10, json_of(case.target, a)["vocab_size"], PROMPT).tolist()
    found: dict[str, list[Any]] = {"off": [], "on": []}
    with contextlib.ExitStack() as stack:
        sessions = {key: stack.enter_context(start(a, case, envs, work, key == "on")) for key in found}
        for session in sessions.values():
            session.ask([prompt], 2)  # warm
        for repeat in range(a.repeats):
            for key in list(found)[:: 1 - 2 * (repeat % 2)]:
                found[key].append(sessions[key].ask([prompt], a.new))
    result = summarise(a, found) | compute_limits(a, work, name)
    print(f"{name:10} {result}", file=sys.stderr, flush=True)
    return result


def summarise(a: argparse.Namespace, found: dict[str, list[Any]]) -> dict[str, Any]:
    wall = {k: statistics.median(m.seconds for m in each) for k, each in found.items()}
    cpu = {k: statistics.median(m.cores * m.seconds for m in each) for k, each in found.items()}
    texts = {tuple(m.tokens[0]) for each in found.values() for m in each}
    return {
        "cpu": round(cpu["off"] / cpu["on"], 2), "wall": round(wall["off"] / wall["on"], 2), "same_text": len(texts) == 1,
        "cpu_ms_per_token": {k: round(1000 * s / a.new, 1) for k, s in cpu.items()},
    }  # fmt: skip


def compute_limits(a: argparse.Namespace, work: Path, name: str) -> dict[str, float]:
    """By the bytes of weights: of 16 bits, for the draft's passes and one step of the target."""
    models = paths(a, work)
    target = read_bytes(models["mtp"] if name == "mtp" else models["target"])
    draft = read_bytes(models["mtp"], "module") if name == "mtp" else read_bytes(models["draft"])
    accepted = sum(a.acceptance**k for k in range(a.tokens + 1))
    return {"accepted": round(accepted, 2), "allowed": round(accepted * target / (target + a.tokens * draft), 2)}


def paths(a: argparse.Namespace, work: Path) -> dict[str, Path]:
    """The models by name, made once."""
    folder = work / f"{a.acceptance}-{a.vocab or 'all'}-{a.layers or 'all'}-{a.draft_layers}"
    result = {name: folder / name for name in ("target", "draft", "mtp")}
    if not result["mtp"].exists():
        print("making models of random weights ...", file=sys.stderr, flush=True)
        make_draft_pair(folder, a.acceptance, a.vocab, a.layers, a.draft_layers)
        make_mtp_model(folder, a.acceptance, a.vocab, a.layers)
    return result


def prepare(a: argparse.Namespace, work: Path, envs: Path, name: str) -> Case:
    result, known = paths(a, work), "thalweg" if name == "mtp" else name
    engine = engines.ENGINES[known]
    target, draft = (result["mtp"], None) if name == "mtp" else (result["target"], result["draft"])
    target, draft = (None if p is None else prepared(engine.weights["bf16"], p, work, envs) for p in (target, draft))
    assert target is not None
    return Case(name, target, draft, str(engines.DRIVERS / engine.driver), engines.python(envs, known))


def json_of(target: Path, a: argparse.Namespace) -> dict[str, Any]:
    folder = target if target.is_dir() else target.parent
    file = folder / "config.json"
    read: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"vocab_size": a.vocab or 151936}
    return read


@contextlib.contextmanager
def start(a: argparse.Namespace, case: Case, envs: Path, work: Path, drafts: bool) -> Iterator[Session]:
    """An engine's process, with drafts or without."""
    settings: dict[str, Any] = {
        "model": str(case.target), "form": "bf16", "threads": a.threads, "kv_bytes": 1 << 30, "max_len": PROMPT + a.new + 8,
    }  # fmt: skip
    known = "thalweg" if case.name == "mtp" else case.name
    if known == "llamacpp":
        built = engines.receipt(envs, known)
        settings |= {"server": str(envs / known / "build" / "bin" / "llama-server"), "slots": 1, "kv_tokens": 1024,
                     "receipt": built["packages"]}  # fmt: skip
    if drafts and known == "thalweg":
        method = {"method": "mtp"} if case.draft is None else {"method": "draft_model", "model": str(case.draft)}
        settings["speculative_config"] = {**method, "num_speculative_tokens": a.tokens}
    elif drafts:
        settings |= {"draft": str(case.draft), "draft_tokens": a.tokens}
    limits = engines.Limits(tuple(range(a.threads)), settings["kv_bytes"], settings["max_len"])
    env = engines.environment(engines.ENGINES[known], envs, limits) | {"OMP_NUM_THREADS": str(a.threads)}
    if known == "thalweg":
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).resolve().parent.parent), env.get("PYTHONPATH"))))
    log = work / f"{case.name}-{'on' if drafts else 'off'}.log"
    with launch([str(case.python), case.driver], settings, env, log, 900.0) as session:
        yield session


if __name__ == "__main__":
    main()
