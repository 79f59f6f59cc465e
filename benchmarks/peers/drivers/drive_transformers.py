"""Drives transformers' generate: requests that arrive together are one static batch, so they must be equally long."""

from __future__ import annotations

from typing import Any

from protocol import Loaded, serve, versions


def load(s: dict[str, Any]) -> Loaded:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(s["threads"])
    model = AutoModelForCausalLM.from_pretrained(s["model"], dtype=torch.bfloat16).eval()

    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        longest = max(map(len, prompts))  # shorter ones are filled up in front
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
        seen = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=seen, max_new_tokens=new, min_new_tokens=new, do_sample=False,
                pad_token_id=0,
            )  # fmt: skip
        tokens: list[list[int]] = out[:, ids.shape[1] :].tolist()
        return tokens

    return Loaded(generate, versions("transformers", "torch"), {"dtype": "bfloat16", "threads": s["threads"]})


if __name__ == "__main__":
    serve(load)
