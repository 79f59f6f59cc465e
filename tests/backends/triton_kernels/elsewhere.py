"""Two processes that the tests start, as Triton's driver is replaced in them for good:

    python elsewhere.py variants ARCH MODEL      what random steps would compile beyond the first few
    python elsewhere.py serve ARCH MODEL CACHE   requests served by the whole engine on a GPU's device whose kernels do nothing

The second is a GPU's process in all that decides what is compiled: real tensors with real addresses, the scheduler's own
batches, graphs, Triton's own way from a launch to its cache. Each prints JSON.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from thalweg.backends.torch_gpu.testing import HostGpuPlatform
from thalweg.config import EngineArgs
from thalweg.engine.worker import cross_compile as worker
from thalweg.engine.worker.build import build
from thalweg.hal import discovery
from thalweg.hal.device import Device
from thalweg.hal.fields import dims
from thalweg.hal.platform import Place

FIRST, STEPS = 12, 60


def variants(arch: str, model: str) -> dict[str, Any]:
    """Steps as serving makes them: decodes, prompts among them, tables that grow, histories and biases now and then."""
    absent = discovery.load("cuda").absent(arch, None)
    built = build(EngineArgs(model=model, load_format="dummy", use_tqdm_on_load=False), absent.platform)
    config, rng = built.config, random.Random(4)
    for batch in list(worker.steps(config))[:FIRST]:
        built.launch(batch)
    for features in worker.list_features(config):
        built.launch(worker.asking(worker.make_step(config, [5], [1]), features, worker.sizes(config.model.vocab)))
    first = [name for _, name in absent.kernels()]
    for _ in range(STEPS):
        seqs = rng.randint(1, min(40, config.scheduler.max_seqs))
        query = [1 if rng.random() < 0.7 else rng.randint(2, 30) for _ in range(seqs)]
        context = [rng.randint(0, config.model.max_len - q) for q in query]
        batch = worker.make_step(config, context, query)
        for features in rng.sample(list(worker.list_features(config)), 2):
            built.launch(grown(worker.asking(batch, features, worker.sizes(config.model.vocab)), rng.randint(1, 40)))
    return {"first": len(first), "later": [name for _, name in absent.kernels()][len(first) :]}


def grown(batch: Any, n: int) -> Any:
    """Its lists n entries long."""
    parts = []
    for part in batch.parts:
        lists = {name: np.repeat(getattr(part, name), n, 0) for name, d in dims(type(part)).items() if d.axes[0] == "N"}
        parts.append(replace(part, **lists))
    return replace(batch, parts=tuple(parts))


class ServingPlatform(HostGpuPlatform):
    """A GPU's device on the host, with the kernels of a GPU."""

    name = "serving"
    arch = ""

    def open(self, place: Place) -> Device:
        from thalweg.backends.torch_gpu.device import GpuDevice
        from thalweg.backends.torch_gpu.host import HostRuntime
        from thalweg.backends.torch_gpu.library import assemble
        from thalweg.hal.device import DeviceInfo

        runtime = HostRuntime(late=False)
        return GpuDevice(DeviceInfo("x", self.name, 1 << 30, 1, ("bfloat16",)), runtime, assemble(self.arch, ()))


def serve(arch: str, model: str, cache: str) -> dict[str, Any]:
    import triton

    from thalweg import LLM, SamplingParams
    from thalweg.backends.triton_kernels import cross_compile

    driver = cross_compile.install(arch)
    cross_compile.keep_in(Path(cache))
    hits: dict[str, bool] = {}

    def listen(*, src: Any, metadata: Any, cache_hit: bool, **more: Any) -> None:
        hits[f"{src.name} {metadata['hash']}"] = cache_hit

    triton.knobs.compilation.listener = listen
    ServingPlatform.arch = arch
    rng = random.Random(7)
    zeros, zeros_like = torch.zeros, torch.zeros_like
    params = [
        SamplingParams(max_tokens=20, temperature=0), SamplingParams(max_tokens=9, temperature=1),
        SamplingParams(max_tokens=7, top_p=0.9, top_k=20), SamplingParams(max_tokens=5, presence_penalty=1, bad_words=["a b"]),
        SamplingParams(max_tokens=6, logit_bias={5: 1.0}), SamplingParams(max_tokens=6, logprobs=5),
        SamplingParams(max_tokens=6, allowed_token_ids=[4, 5]),
    ]  # fmt: skip
    # Kernels leave their outputs as they were, and a token that is none is no index.
    with patch("torch.empty", zeros), patch("torch.empty_like", zeros_like):
        llm = LLM(model, device=f"{__name__}:ServingPlatform", dtype="bfloat16", load_format="dummy", max_model_len=256)
        for n in (1, 3, 17):
            prompts = [{"prompt_token_ids": [rng.randint(4, 90) for _ in range(rng.randint(1, 120))]} for _ in range(n)]
            llm.generate(prompts, [rng.choice(params) for _ in range(n)], use_tqdm=False)
        for p in params:
            llm.generate([{"prompt_token_ids": [5, 6, 7]}], p, use_tqdm=False)
    return {"hits": sum(hits.values()), "misses": [k for k, hit in hits.items() if not hit], "launched": driver.launched}


if __name__ == "__main__":
    sys.modules["elsewhere"] = sys.modules["__main__"]
    __name__ = "elsewhere"
    print(json.dumps({"variants": variants, "serve": serve}[sys.argv[1]](*sys.argv[2:])))
