"""`thalweg bench roofline` of every family, cut to two layers, as one table: which ones decode slower than bytes allow.

Shapes are the defaults of transformers' configuration classes, with a vocabulary of 8,192 and at most 16 experts. Weights are
random. Each family runs in its own process. "slower" is the time of a decode step over the time that its bytes take at the read
rate measured in the same process. The functions with most of that time follow, with their shares, where the device counts them.
Families that transformers gives no default for, or that need too much memory, are listed with the reason.

    python benchmarks/families.py [--only NAME ...] [--device cpu] [--dtype bfloat16] [--most-gb 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from thalweg.models import registry

LAYERS, VOCABULARY, EXPERTS = 2, 8192, 16
LISTS = ("layer_types", "layers_block_type", "mlp_layer_types", "attn_types", "no_rope_layers", "attention_layers")
"""Keys with an entry for each layer."""
COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_hidden_layers_experts")
ALLOWED = 1.5
"""Times of what bytes allow, up to which a family counts as fast enough."""


def shrink(config: dict[str, Any], architecture: str) -> dict[str, Any]:
    """A configuration cut to two layers and few tokens and experts."""
    whole = int(config.get("num_hidden_layers") or config.get("n_layer") or config.get("num_layers") or LAYERS)
    made = {**config, "architectures": [architecture]}
    for key in ("num_hidden_layers", "n_layer", "num_layers"):
        if key in made:
            made[key] = LAYERS
    for key, value in config.items():
        if isinstance(value, list) and len(value) == whole and (key in LISTS or key.endswith("layers")):
            kinds = list(dict.fromkeys(map(str, value)))
            last = next(i for i, entry in enumerate(value) if str(entry) == kinds[-1])
            made[key] = [value[0], value[last if last else 1]]
    if int(made.get("vocab_size") or 0) > VOCABULARY:
        made["vocab_size"] = VOCABULARY
    for key in COUNTS:
        if isinstance(made.get(key), int) and made[key] > EXPERTS:
            made[key] = EXPERTS
    for key in [k for k in made if k.endswith("_token_id")]:
        made[key] = None if made[key] is None or isinstance(made[key], list) else min(int(made[key]), VOCABULARY - 1)
    return made


def find_families() -> dict[str, str]:
    """model_type -> architecture, of those that transformers and thalweg both know."""
    return {kind: name for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if registry.has(name)}


def measure(kind: str, architecture: str, given: argparse.Namespace) -> dict[str, Any]:
    """A row, or {"reason"}."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            config = shrink(CONFIG_MAPPING[kind]().to_dict(), architecture)
        except Exception as e:  # whatever a configuration class raises
            return {"reason": f"transformers: {type(e).__name__}: {e}"}
        (Path(folder) / "config.json").write_text(json.dumps(config, default=str))
        common = ["--model", folder, "--device", given.device, "--dtype", given.dtype, "--max-model-len", "640"]
        common += ["--load-format", "dummy", "--max-num-seqs", "2", "--skip-tokenizer-init"]
        planned = run_command(["plan", folder, *common[2:], "--json"], given.timeout)
        if isinstance(planned, dict) and planned.get("weights", 0) > given.most_gb * 1e9:
            return {"reason": f"two layers have {planned['weights'] / 1e9:.1f} GB of weights"}
        out = Path(folder) / "out.json"
        lengths = ["--input-len", str(given.input_len), "--output-len", "24", "--num-iters", "3", "--output-json", str(out)]
        said = run_command(["bench", "roofline", *common, *lengths], given.timeout)
        if not out.exists():
            return {"reason": str(said).strip().splitlines()[-1] if str(said).strip() else "no result"}
        made = json.loads(out.read_text())
    decode = made["phases"]["decode"]
    return {
        "MB": decode["bytes"] / 1e6, "ms": decode["seconds"] * 1e3, "slower": 1 / decode["fraction"],
        "functions": list_functions(made.get("by_op")),
    }  # fmt: skip


def run_command(words: Sequence[str], timeout: float) -> Any:
    """The JSON object that a command of thalweg prints, or its output."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "thalweg", *words], capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return f"takes more than {timeout:.0f} s"
    try:
        return json.loads(done.stdout)
    except ValueError:
        return done.stdout + done.stderr


def list_functions(by_op: Any) -> str:
    """The functions that take most of a decoding step, with their shares."""
    spent = {name: of["seconds"] for name, of in (by_op or {}).get("decode", {}).items()}
    total = sum(spent.values()) or 1.0
    return ", ".join(f"{name} {spent[name] / total:.0%}" for name in sorted(spent, key=lambda n: -spent[n])[:4])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    families = find_families()
    parser.add_argument("--only", nargs="+", choices=sorted(families), default=sorted(families), metavar="NAME")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--most-gb", type=float, default=3, help="of two layers' weights")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for a family")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    rows: dict[str, dict[str, Any]] = {}
    print("| family | MB a step | ms | slower than bytes allow | most of the time |\n|---|---:|---:|---:|---|")
    for kind in given.only:
        row = rows[kind] = measure(kind, families[kind], given)
        if "reason" in row:
            print(f"| {kind} | | | | not measured: {row['reason']:.120} |", flush=True)
        else:
            print(f"| {kind} | {row['MB']:.0f} | {row['ms']:.2f} | {row['slower']:.2f} | {row['functions']} |", flush=True)
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1) + "\n")
    measured = {k: r["slower"] for k, r in rows.items() if "slower" in r}
    slow = sorted((k for k in measured if measured[k] > ALLOWED), key=lambda k: -measured[k])
    print(f"\n{len(measured)} measured, {len(rows) - len(measured)} not. Above {ALLOWED}: {', '.join(slow) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
