"""The engines that are compared: what each needs to run, which weights it takes in which form, and how drivers start."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DRIVERS = Path(__file__).parent / "drivers"
FORMS = ("bf16", "int8", "int4", "fp8")
"""What is compared with what: weights of the same width."""
KV8 = "thalweg-kv8"
"""thalweg with keys and values in 8 bits, as OpenVINO has them unless told otherwise."""
GGUF = "thalweg-gguf"
"""thalweg with the files that llama.cpp reads, in place of weights that it rounds itself."""
KEPT = "thalweg-kept"
"""thalweg that maps its weights as an earlier start packed them, as others read files made for them beforehand."""
DENSE = "thalweg-dense"
"""thalweg with bfloat16 weights as they are, where it would hold them in about 12 bits."""
OURS = ("thalweg", KV8, GGUF, KEPT, DENSE)
SLOTS = 32
"""Requests that llama.cpp's server takes at once; its cache is divided among no fewer."""


@dataclass(frozen=True, slots=True)
class Engine:
    """weights: by form, the files it is given, named as in models.py. Only thalweg runs in this environment."""

    name: str
    driver: str
    weights: Mapping[str, str]
    own_environment: bool = True


_ROUNDED = {"bf16": "checkpoint", "int8": "w8a8", "int4": "w4a16"}
_GGUF = {"bf16": "gguf-bf16", "int8": "gguf-q8_0", "int4": "gguf-q4_k_m"}
ENGINES = {
    e.name: e
    for e in (
        Engine("thalweg", "drive_thalweg.py", dict.fromkeys(FORMS, "checkpoint"), own_environment=False),
        Engine(KV8, "drive_thalweg.py", dict.fromkeys(FORMS, "checkpoint"), own_environment=False),
        Engine(GGUF, "drive_thalweg.py", _GGUF, own_environment=False),
        Engine(KEPT, "drive_thalweg.py", dict.fromkeys(FORMS, "checkpoint"), own_environment=False),
        Engine(DENSE, "drive_thalweg.py", {"bf16": "checkpoint"}, own_environment=False),
        Engine("vllm", "drive_vllm.py", _ROUNDED),
        Engine("vllm-zen", "drive_vllm.py", _ROUNDED),
        Engine("llamacpp", "drive_llamacpp.py", _GGUF),
        Engine("openvino", "drive_openvino.py", {"bf16": "ov-fp16", "int8": "ov-int8", "int4": "ov-int4"}),
        Engine("transformers", "drive_transformers.py", {"bf16": "checkpoint"}),
    )
}


def refuses(name: str, cpuinfo: str) -> str | None:
    """Why an engine is not what its name says on a processor of which Linux tells this; None if it is."""
    if name == "vllm-zen" and not ("AuthenticAMD" in cpuinfo and "avx512" in cpuinfo):
        return "vLLM uses zentorch on AMD processors with AVX512 only, and this is none: it would run as plain vllm does"
    return None


def python(envs: Path, name: str) -> Path:
    """The interpreter an engine runs under."""
    return envs / name / "bin" / "python" if ENGINES[name].own_environment else Path(sys.executable)


def receipt(envs: Path, name: str) -> dict[str, Any]:
    """What `install` put there. FileNotFoundError if it has not been run."""
    found: dict[str, Any] = json.loads((envs / name / "peer.json").read_text())
    return found


def settings(engine: Engine, envs: Path, weights: Path, form: str, config: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """What the driver is told. config: the model's config.json."""
    out: dict[str, Any] = {
        "model": str(weights), "form": form, "threads": len(limits.cores), "kv_bytes": limits.kv_bytes,
        "max_len": limits.max_len,
    }  # fmt: skip
    if engine.name == KV8:
        out["kv_cache_dtype"] = "int8_per_token_head"
    if engine.name == KEPT:
        out["packed_weights"] = str(weights.with_name(weights.name + "-packed"))
    if engine.name == DENSE:
        out["compress_weights"] = False
    if engine.name in ("thalweg", KV8, KEPT) and form != "bf16":
        out["quantization"] = form
    if engine.name == "llamacpp":
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        per_token = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * width * 2  # keys and values of 2 bytes
        built = receipt(envs, engine.name)
        out |= {
            "server": str(envs / engine.name / "build" / "bin" / "llama-server"), "slots": SLOTS,
            "kv_tokens": limits.kv_bytes // per_token // 256 * 256, "receipt": {**built["packages"], "build": built["build"]},
        }  # fmt: skip
    return out


@dataclass(frozen=True, slots=True)
class Limits:
    """The same for every engine. cores: their numbers. kv_bytes: cache of keys and values. max_len: tokens of a request."""

    cores: tuple[int, ...]
    kv_bytes: int
    max_len: int


def environment(engine: Engine, envs: Path, limits: Limits) -> dict[str, str]:
    """Of the driver's process: this one's, without what would size or redirect an engine behind its back."""
    ours = ("OMP_", "KMP_", "MKL_", "GOMP_", "VLLM_", "LLAMA_", "GGML_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    env |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if engine.own_environment:
        env.pop("PYTHONPATH", None)
    if engine.driver == "drive_vllm.py":
        env |= {
            "VLLM_CPU_KVCACHE_SPACE": str(limits.kv_bytes >> 30),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, limits.cores)),  # untold, it leaves a core for others
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "VLLM_CACHE_ROOT": str(envs / engine.name / "cache"),
            "TORCHINDUCTOR_CACHE_DIR": str(envs / engine.name / "cache" / "inductor"),
            "VLLM_NO_USAGE_STATS": "1",
        }
        openmp = envs / engine.name / "lib" / "libiomp5.so"
        if openmp.exists():
            env["LD_PRELOAD"] = str(openmp)  # its documentation asks for this, and its log complains without
    return env
