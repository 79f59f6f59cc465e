"""Drives OpenVINO GenAI's continuous batching. It stores keys and values in 8 bits by default; that is left as it is."""

from __future__ import annotations

from typing import Any

from protocol import Loaded, serve, versions


def load(s: dict[str, Any]) -> Loaded:
    import numpy as np
    import openvino
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = s["kv_bytes"] >> 30
    scheduler.enable_prefix_caching = True
    reported = {"INFERENCE_NUM_THREADS": s["threads"]}
    drafts = {"draft_model": genai.draft_model(s["draft"], "CPU", **reported)} if "draft" in s else {}
    pipe = genai.ContinuousBatchingPipeline(s["model"], scheduler, "CPU", reported | drafts)

    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new, True, False
        if "draft" in s:
            config.num_assistant_tokens = s["draft_tokens"]
        ids = [openvino.Tensor(np.array([p], np.int64)) for p in prompts]
        done = pipe.generate(ids, [config] * len(ids))
        return [[int(t) for t in d.m_generation_ids[0]] for d in done]

    flags = {"scheduler": scheduler.to_string(), "properties": reported}
    return Loaded(generate, versions("openvino-genai", "openvino", "nncf", "optimum-intel"), flags)


if __name__ == "__main__":
    serve(load)
