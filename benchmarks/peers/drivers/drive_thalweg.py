"""Drives thalweg's offline API, without a tokenizer."""

from __future__ import annotations

from typing import Any

from protocol import Loaded, serve, versions


def load(s: dict[str, Any]) -> Loaded:
    from thalweg import LLM, SamplingParams, __version__

    flags = {
        "device": "cpu", "dtype": "bfloat16", "quantization": s.get("quantization"),
        "threads": s["threads"], "kv_cache_memory_bytes": s["kv_bytes"], "max_model_len": s["max_len"],
        "skip_tokenizer_init": True, "kv_cache_dtype": s.get("kv_cache_dtype", "auto"),
        "speculative_config": s.get("speculative_config"),
        "additional_config": {k: s[k] for k in ("packed_weights", "compress_weights") if k in s},
    }  # fmt: skip
    llm = LLM(model=s["model"], use_tqdm_on_load=False, **flags)

    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
        done = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return [list(o.outputs[0].token_ids) for o in done]

    about = {"thalweg": __version__, **versions("torch")}
    return Loaded(generate, about, {**flags, "kernel_plan": llm.kernel_plan}, llm.shutdown)


if __name__ == "__main__":
    serve(load)
