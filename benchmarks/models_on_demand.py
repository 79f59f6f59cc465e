"""Loads of models on demand: 5 models, room for 2, random requests, and the time of a request that switches models.

Writes a checkpoint of random weights in the shape of Qwen3-0.6B (or uses the bundled model with --nano), lists it under
five names, and starts `thalweg serve --models-config`. Prints failures, and seconds from a request for an unloaded model to its
first answer, with the packed weights in the page cache.

Run: python benchmarks/models_on_demand.py [--nano] [--requests 200] [--threads N]
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from thalweg.checkpoint.hub import resolve_model

FOLDER = resolve_model("thalweg-nano")
SHAPE = {
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
MODELS, ROOM = 5, 2


def write_checkpoint(folder: Path) -> None:
    """Random bfloat16 weights, with the tokenizer of the bundled model."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((FOLDER / "config.json").read_text()) | SHAPE
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        (folder / name).write_bytes((FOLDER / name).read_bytes())
    h, i, q = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["num_attention_heads"] * SHAPE["head_dim"]
    kv, d = SHAPE["num_key_value_heads"] * SHAPE["head_dim"], SHAPE["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (SHAPE["vocab_size"], h), "model.norm.weight": (h,)}
    for n in range(SHAPE["num_hidden_layers"]):
        layer = {
            "self_attn.q_proj": (q, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h), "self_attn.o_proj": (h, q),
            "self_attn.q_norm": (d,), "self_attn.k_norm": (d,), "mlp.gate_proj": (i, h), "mlp.up_proj": (i, h),
            "mlp.down_proj": (h, i), "input_layernorm": (h,), "post_attention_layernorm": (h,),
        }  # fmt: skip
        shapes |= {f"model.layers.{n}.{name}.weight": shape for name, shape in layer.items()}
    result = torch.Generator().manual_seed(0)
    save_file(
        {name: (torch.randn(shape, generator=result) * 0.02).bfloat16() for name, shape in shapes.items()},
        folder / "model.safetensors", {"format": "pt"},
    )  # fmt: skip


class Server:
    """A server process. `url` when it is ready."""

    def __init__(self, config: Path, threads: int) -> None:
        command = [sys.executable, "-m", "thalweg", "serve", "--models-config", str(config), "--port", "0"]
        command += ["--threads", str(threads), "--disable-uvicorn-access-log"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self._process.stdout is not None
        self.url = ""
        for line in self._process.stdout:
            if found := re.search(r"serving .* on (http://\S+)", line):
                self.url = found[1]
                break
        threading.Thread(target=self._process.stdout.read, daemon=True).start()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)


def ask(client: httpx.Client, name: str) -> float:
    """Seconds of a request. Raises if it is refused."""
    began = time.perf_counter()
    body: dict[str, Any] = {"model": name, "prompt": "hello", "max_tokens": 1}
    client.post("/v1/completions", json=body).raise_for_status()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nano", action="store_true")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--switches", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = FOLDER if options.nano else Path(scratch) / "model"
        if not options.nano:
            folder.mkdir()
            write_checkpoint(folder)
        more = {} if options.nano else {"additional_config": {"packed_weights": scratch}}
        entries = [{"model": str(folder), "name": f"m{i}", "kv_cache_memory_bytes": "256M", **more} for i in range(MODELS)]
        file = Path(scratch) / "models.json"
        file.write_text(json.dumps({"max_loaded": ROOM, "models": entries}))
        server = Server(file, options.threads)
        try:
            with httpx.Client(base_url=server.url, timeout=600) as client:
                measure(client, options.requests, options.switches)
        finally:
            server.close()


def measure(client: httpx.Client, requests: int, switches: int) -> None:
    for i in range(MODELS):  # every model's first load reads its tokenizer
        ask(client, f"m{i}")
    times = [ask(client, f"m{i % MODELS}") for i in range(switches)]
    print(f"switch to a model in the page cache: median {statistics.median(times):.2f} s, best {min(times):.2f}, "
          f"worst {max(times):.2f} ({switches} switches)", flush=True)  # fmt: skip
    dice, failures = random.Random(0), 0
    names = [f"m{dice.randrange(MODELS)}" for _ in range(requests)]
    began = time.perf_counter()
    with ThreadPoolExecutor(16) as threads:
        for future in [threads.submit(ask, client, name) for name in names]:
            failures += future.exception() is not None
    print(f"{requests} random requests, 16 at once: {failures} failures in {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
