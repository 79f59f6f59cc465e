"""Decoding steps of every family, cut to two layers, as one table: which ones are slower than the bytes of their weights allow.

Shapes are the defaults of transformers' configuration classes (`SHAPES` has those that differ), with a vocabulary of 8,192, at
most 16 experts, and sparse attention to at most 64 keys. Families without a class there have the shapes of `family_configs`.
Weights are random. Each family runs in its own process.

"floor" is the time that a step's bytes take at the read rate measured in the same process, before, between and after the steps.
The rate is the larger of a plain read of memory and of one row times a large matrix. "ms" is the lower quartile of a step. With
one thread it is processor time, so that other programs on the machine have little effect. The ops without a kernel follow
("bodies": they run as torch operations), then the functions with most of the time of a step, where the device counts them.
Families that transformers gives no default for, or that need too much memory, are listed with the reason.

    python benchmarks/families.py [--only NAME ...] [--device cpu] [--dtype bfloat16] [--threads 1] [--most-gb 4] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from family_configs import CONFIGS, TEXT_PARTS

LAYERS, VOCABULARY, EXPERTS, SPARSE = 2, 8192, 16, 64
COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
TOPS = ("index_topk", "indexer_budget")
"""Keys that sparse attention reads."""
NUMBERS = ("full_attn_idxs", "mlp_only_layers", "attn_layer_indices", "global_attn_idx")
"""Keys with a list of layer numbers."""
SPANS = ("num_kv_shared_layers", "num_nextn_predict_layers", "first_k_dense_replace", "num_dense_layers", "max_window_layers")
"""Keys with a number of layers."""
ALLOWED = 1.5
"""Times of what bytes allow, up to which a family counts as fast enough."""
SMALLEST = 512
"""Least hidden size: the defaults of some classes are toys."""
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "bailing_hybrid": {"max_position_embeddings": 32768},
    "bloom": {"hidden_size": 1024, "n_head": 16},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "falcon_mamba": {"hidden_size": 4096, "intermediate_size": 8192, "time_step_rank": 256},
    "glm4_moe": {"head_dim": 128},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "mamba": {"hidden_size": 2560, "intermediate_size": 5120, "time_step_rank": 160},
    "qwen4_exp_text": {
        "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 256, "indexer_budget": 64,
        "indexer_compress_ratio": 16,
    },
    "recurrent_gemma": {"max_position_embeddings": 8192},
    **{kind: {"decoder_layers": LAYERS} for kind in (
        "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart", "trocr",
    )},
    **{kind: {"is_decoder": True} for kind in ("bert", "bert-generation", "camembert", "roberta", "xlm-roberta")},
}  # fmt: skip
"""Of configuration classes without such a default, or with one that no published file has: bloom-560m, falcon-mamba-7b and
mamba-2.8b have these."""


def shrink(config: dict[str, Any], architecture: str) -> dict[str, Any]:
    """A configuration, as `canonical_config` returns it, cut to two layers and few tokens and experts."""
    whole = int(config.get("num_hidden_layers") or LAYERS)
    result = {**config, "architectures": [architecture], "num_hidden_layers": LAYERS}
    for key, value in config.items():
        if key in NUMBERS and isinstance(value, list):
            result[key] = [n for n in value if n < LAYERS] or ([1] if value else [])
        elif isinstance(value, list) and len(value) == whole and whole != LAYERS:
            result[key] = cut(value)
        elif key in SPANS and isinstance(value, int):
            result[key] = 0 if key == "num_kv_shared_layers" else min(value, 1)
        elif (key in COUNTS or key in TOPS) and isinstance(value, int):
            result[key] = min(value, EXPERTS if key in COUNTS else SPARSE)
        elif key.endswith("_token_id"):
            result[key] = None if value is None or isinstance(value, list) else min(int(value), VOCABULARY - 1)
    if int(result.get("vocab_size") or 0) > VOCABULARY:
        result["vocab_size"] = VOCABULARY
    return {key: drop_infinity(value) for key, value in result.items()}


def cut(each: list[Any]) -> list[Any]:
    """An entry per layer -> two: the first, and the first of the last kind."""
    kinds = list(dict.fromkeys(map(str, each)))
    last = next(i for i, entry in enumerate(each) if str(entry) == kinds[-1])
    return [each[0], each[last if last else 1]]


def drop_infinity(value: Any) -> Any:
    """Files have null."""
    if isinstance(value, list | tuple):
        return [drop_infinity(each) for each in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def find_families() -> dict[str, str]:
    """model_type -> architecture, of the text models that transformers and thalweg both know, and those of `family_configs`.
    Models of several modalities are left out: their text model is another entry."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from thalweg.models import registry

    known = {kind: name for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if registry.has(name)}
    plain = {kind: name for kind, name in known.items() if "text_config" not in CONFIG_MAPPING[kind].sub_configs}
    parts = {kind: name for kind, name in TEXT_PARTS.items() if kind in CONFIG_MAPPING}
    return {**plain, **parts, **{kind: name for kind, (name, _) in CONFIGS.items()}}


def write_config(kind: str, architecture: str, folder: Path) -> str | None:
    """config.json of the family, cut. Returns None, or why there is none."""
    from transformers import CONFIG_MAPPING

    from thalweg.checkpoint.spelling import canonical_config

    if kind in CONFIGS:
        result = {"model_type": kind, **CONFIGS[kind][1], "architectures": [architecture]}
        (folder / "config.json").write_text(json.dumps(result))
        return None
    try:
        whole = {**CONFIG_MAPPING[kind]().to_dict(), **SHAPES.get(kind, {})}
        result = shrink(canonical_config({**whole, "architectures": [architecture]}), architecture)
    except Exception as e:  # whatever a configuration class raises
        return f"transformers: {type(e).__name__}: {e}"
    if int(result.get("hidden_size") or 0) < SMALLEST:
        return f"its default has a hidden size of {result.get('hidden_size')}: add one to SHAPES"
    (folder / "config.json").write_text(json.dumps(result, default=str))
    return None


def measure(kind: str, architecture: str, given: argparse.Namespace) -> dict[str, Any]:
    """A row, or {"reason"}. The process of a family is a fork of this one, which has imported everything."""
    import thalweg.llm  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        if reason := write_config(kind, architecture, Path(folder)):
            return {"reason": reason}
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=send_row, args=(there, folder, given))
        child.start()
        there.close()
        if not here.poll(given.timeout):
            child.kill()
            return {"reason": f"takes more than {given.timeout:.0f} s"}
        try:
            row: dict[str, Any] = here.recv()
        except EOFError:
            row = {"reason": "its process ended without a result"}
        child.join()
        return row


def send_row(to: Connection, folder: str, given: argparse.Namespace) -> None:
    try:
        to.send(measure_here(folder, given))
    except Exception as e:  # whatever a model raises
        to.send({"reason": f"{type(e).__name__}: {e}"})


# ---------------------------------------------------------------------------------------------- in the process of a family


def measure_here(folder: str, given: argparse.Namespace) -> dict[str, Any]:
    """The row of the model in this folder, or {"reason"}."""
    from thalweg import LLM
    from thalweg.bench import by_op
    from thalweg.bench.common import random_prompts
    from thalweg.checkpoint.config import max_len
    from thalweg.checkpoint.spelling import canonical_config
    from thalweg.hal.kv import BYTES
    from thalweg.models import registry
    from thalweg.models.sizes import parameters, step_work, values
    from thalweg.quantization import registry as formats

    config = canonical_config(json.loads((Path(folder) / "config.json").read_text()))
    spec = registry.family(config)(config)
    if (size := sum(map(values, parameters(spec))) * BYTES[given.dtype]) > given.most_gb * 1e9:
        return {"reason": f"two layers have {size / 1e9:.1f} GB of weights"}
    llm = LLM(
        folder, device=given.device, dtype=given.dtype, max_model_len=min(640, max_len(config)), load_format="dummy",
        max_num_seqs=2, skip_tokenizer_init=True,
    )  # fmt: skip
    clock = time.process_time if given.threads == 1 and given.device == "cpu" else time.perf_counter
    prompts = random_prompts([given.input_len], llm.config.model.vocab, frozenset(), 0)
    multiply = make_product(llm.device, given.dtype)
    decode(llm, prompts, given.output_len, clock)  # recorded, captured or compiled
    rates, steps = [llm.device.read_rate() or 0.0], list[float]()
    for _ in range(given.rounds):
        rates += [multiply(clock) for _ in range(3)]
        steps += decode(llm, prompts, given.output_len, clock)
    rates += [multiply(clock), llm.device.read_rate() or 0.0]
    work = step_work(
        spec, given.dtype, formats.scheme(config, None), 1, 1,
        given.input_len + given.output_len // 2,
    )  # fmt: skip
    seconds = sorted(steps)[len(steps) // 4]
    plan = list(map(str, llm.kernel_plan))
    return {
        "MB": work.bytes / 1e6, "floor": work.bytes / max(rates) * 1e3, "ms": seconds * 1e3,
        "slower": seconds / (work.bytes / max(rates)),
        "bodies": sorted({line.split("(")[0] for line in plan if " -> reference" in line}),
        "attention": sorted({line for line in plan if "torch-paged" in line})[:1],
        "functions": list_functions(by_op.measure(llm, prompts, 8)),
    }  # fmt: skip


def decode(llm: Any, prompts: list[Any], count: int, clock: Callable[[], float]) -> list[float]:
    """Seconds of each step after that of the prompt."""
    from thalweg import SamplingParams

    llm.reset_prefix_cache()
    llm.enqueue(prompts, SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=count, detokenize=False), use_tqdm=False)
    engine, seconds = llm.llm_engine, list[float]()
    while engine.has_unfinished_requests():
        begun = clock()
        engine.step()
        seconds.append(clock() - begun)
    return seconds[-(count - 1) :]


def make_product(device: Any, dtype: str) -> Callable[[Callable[[], float]], float]:
    """A call that returns bytes per second of one row times a matrix far larger than caches, by the fastest kernel."""
    import torch

    from thalweg.hal.op import Binder
    from thalweg.hal.ops import linear
    from thalweg.hal.testing import cases
    from thalweg.hal.weights import DENSE, QTensor

    fan_in, out = 4096, 32768
    kernels = [k for k in device.kernels if k.op == "linear"]
    bound = Binder(kernels).bind(linear, dtype=dtype, in_features=fan_in, out_features=out, weight=DENSE)
    kind = getattr(torch, dtype)
    weight = device.normal((out, fan_in), dtype, std=1.0, seed=0)
    weight = torch.randn(out, fan_in).to(kind) if weight is None else weight
    packed = bound.pack(QTensor(DENSE, (out, fan_in), {"weight": device.put(weight)}))
    x = device.put(torch.randn(1, fan_in).to(kind))
    run = cases.CompiledFunction(device, lambda x: bound(x, packed))

    def rate(clock: Callable[[], float]) -> float:
        begun = clock()
        run([x])
        return float(fan_in * out * kind.itemsize) / (clock() - begun)

    return rate


def list_functions(by_op: Any) -> str:
    """The functions that take most of a decoding step, with their shares."""
    spent = {name: of["seconds"] for name, of in (by_op or {}).get("decode", {}).items()}
    total = sum(spent.values()) or 1.0
    return ", ".join(f"{name} {spent[name] / total:.0%}" for name in sorted(spent, key=lambda n: -spent[n])[:4])


def print_rows(rows: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> None:
    for kind in names:
        row = rows[kind]
        if "reason" in row:
            print(f"| {kind} | | | | | | not measured: {row['reason']:.120} |", flush=True)
            continue
        bodies = ", ".join([*row["bodies"], *(["attention"] if row["attention"] else [])]) or "none"
        print(
            f"| {kind} | {row['MB']:.0f} | {row['floor']:.2f} | {row['ms']:.2f} | {row['slower']:.2f} | {bodies} | "
            f"{row['functions']} |", flush=True
        )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="model types; default: all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument(
        "--threads", type=int, default=1, help="of the device. With more than one, steps are timed by the clock"
    )
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most-gb", type=float, default=4, help="of two layers' weights")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for a family")
    parser.add_argument("--json", type=Path, help="write the rows there too, and skip families that it has")
    given = parser.parse_args(argv)
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    families = find_families()
    names = given.only or sorted(families)
    if odd := [name for name in names if name not in families]:
        parser.error(f"--only: {odd[0]} is not one of {', '.join(sorted(families))}")
    rows: dict[str, dict[str, Any]] = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    print("| family | MB a step | floor ms | ms | slower than bytes allow | bodies | most of the time |")
    print("|---|---:|---:|---:|---:|---|---|")
    for kind in names:
        if kind not in rows:
            rows[kind] = measure(kind, families[kind], given)
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1) + "\n")
        print_rows(rows, [kind])
    measured = {k: rows[k]["slower"] for k in names if "slower" in rows[k]}
    slow = sorted((k for k in measured if measured[k] > ALLOWED), key=lambda k: -measured[k])
    print(f"\n{len(measured)} measured, {len(names) - len(measured)} not. Above {ALLOWED}: {', '.join(slow) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
