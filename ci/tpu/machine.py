"""What a machine with a TPU can do: does the engine start and answer, does the conformance kit hold, how fast is it.

Parts run one after another, each in its own process, because one process holds a TPU; first what says most. summary.json and
each part's log lie under $OUT (default build/tpu). --budget: seconds for all of it; a part that does not end in them is ended
and named, and what did not fit is named too. --resume: what passed in $OUT/summary.json is not run again. --host: JAX's host
platform in place of the hardware, with few cases and a small model, so that every part has run before a TPU is at hand.
Exit status: 0 if every part passed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT = 1800.0
"""Seconds of one part, at most."""
SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "vocab_size": 128256, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}  # fmt: skip
MODELS: Mapping[str, Mapping[str, Any]] = {
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "head_dim": 128},
}
"""Of Llama 3, with weights made up."""
SIZES = {
    "latency": (), "throughput": ("--num-prompts=256", "--input-len=1024", "--output-len=256"), "roofline": (),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", action="store_true", help="JAX's host platform, few cases: no figure of it means anything")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds for all of it")
    parser.add_argument("--resume", action="store_true", help="leave out what passed before")
    parser.add_argument("--only", nargs="*", metavar="PART", help="these parts, as summary.json names them")
    args = parser.parse_args()
    out = Path(os.environ.get("OUT") or ROOT / "build" / "tpu").resolve()
    out.mkdir(parents=True, exist_ok=True)
    todo = parts(out, args.host)
    if unknown := set(args.only or ()) - set(todo):
        parser.error(f"--only: no part is called {', '.join(sorted(unknown))}; there are: {', '.join(todo)}")
    before = _before(out / "summary.json", args.host) if args.resume else {}
    summary: dict[str, Any] = {"on_host": args.host, "parts": {n: before.get(n, {"state": "not run"}) for n in todo}}
    end = time.monotonic() + args.budget
    for name, command in todo.items():
        if summary["parts"][name]["state"] == "passed" or (args.only and name not in args.only):
            continue
        left = min(LIMIT, end - time.monotonic())
        if left > 0:
            summary["parts"][name] = {"state": "killed", "command": command}  # what is true if this process is ended too
            _write(out, summary)
            summary["parts"][name] = executed(name, command, out, left)
        _write(out, summary)
    _write(out, summary)
    wrong = {n: p["state"] for n, p in summary["parts"].items() if p["state"] != "passed" and n in (args.only or todo)}
    print("\n".join(f"{n:20} {p['state']:8} {p.get('seconds', 0):7.0f} s" for n, p in summary["parts"].items()))
    print(f"see {out / 'summary.json'}" + (f"; not passed: {', '.join(wrong)}" if wrong else "; all parts passed"))
    return int(bool(wrong))


def _before(file: Path, host: bool) -> dict[str, Any]:
    """What passed. Exits if it was on other hardware."""
    if not file.exists():
        return {}
    summary = json.loads(file.read_text())
    if summary["on_host"] != host:
        sys.exit(f"--resume: {file} is of a run {'on the host' if summary['on_host'] else 'on a TPU'}: give another OUT")
    return {n: p for n, p in summary["parts"].items() if p["state"] == "passed"}


def _write(out: Path, summary: Mapping[str, Any]) -> None:
    fresh = out / "summary.new"
    fresh.write_text(json.dumps(summary, indent=1) + "\n")
    fresh.replace(out / "summary.json")


def parts(out: Path, host: bool) -> dict[str, list[str]]:
    """Name -> command, in order."""
    options = {"jax_platform": "cpu", "attention": "xla"} if host else {}
    thalweg = [sys.executable, "-m", "thalweg"]
    engine = ["--device", "tpu", *(["--additional-config", json.dumps(options)] if host else [])]
    kit = [sys.executable, "-m", "pytest", "--pyargs", "thalweg.hal.testing", "--platform=tpu", "-q", "-p", "no:cacheprovider"]
    kit += ["--platform-options", json.dumps(options)] if host else []
    few = ["--max-model-len=256", "--max-num-seqs=4"] if host else []
    todo = {
        "backends": [*thalweg, "backends"],
        "first tokens": [*thalweg, "bench", "latency", *engine, *few, "--input-len=32", "--output-len=16", "--num-iters=2",
                         "--num-iters-warmup=1", f"--output-json={out / 'first.json'}"],
        "kit attention": [*kit, "-k", "test_attention and gqa and float32" if host else "test_attention"],
        "kit linear": [*kit, "-k", "test_ops and linear and float32 and not int" if host else "test_ops and linear-"],
    }  # fmt: skip
    for name in () if host else MODELS:
        folder = out / f"llama-{name}"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({**SHAPE, **MODELS[name]}))
        made_up = ["--model", str(folder), "--load-format=dummy", "--skip-tokenizer-init"]
        for kind, sizes in SIZES.items():
            file = out / f"{kind}-{name}.json"
            todo[f"{kind} {name}"] = [*thalweg, "bench", kind, *engine, *made_up, *sizes, f"--output-json={file}"]
    if not host:
        todo["kit rest"] = [*kit, "-k", "not test_attention and not (test_ops and linear-)"]
        todo["kernels"] = [*kit, "--mode=perf"]
        todo["support"] = [*kit, "--mode=support"]
    return todo


def executed(name: str, command: list[str], out: Path, seconds: float) -> dict[str, Any]:
    """Run one part; its output goes to a log of its name."""
    log = out / f"{name.replace(' ', '-')}.log"
    print(f"== {name}", flush=True)
    start = time.monotonic()
    with log.open("w") as f:
        process = subprocess.Popen(command, cwd=ROOT, stdout=f, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            state = "failed" if process.wait(seconds) else "passed"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            state = "killed"
    print(
        f"   {state}",
        *log.read_text(errors="replace").splitlines()[-(1 if state == "passed" else 12) :],
        sep="\n   ",
        flush=True,
    )
    return {"state": state, "command": command, "seconds": round(time.monotonic() - start, 1), "log": log.name}


if __name__ == "__main__":
    sys.exit(main())
