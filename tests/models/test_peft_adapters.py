"""Variants of adapters as peft writes them: served as peft itself computes them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from zoo import load_reference, make_checkpoint

from thalweg import LLM, LoRARequest, SamplingParams

NEW = 6
GREEDY = SamplingParams(max_tokens=NEW, logprobs=0, ignore_eos=True, temperature=0)
PROMPTS = [list(b"the same prompt for all of them"), list(b"another")]
ATTENTION, EVERY = ["q_proj", "v_proj"], "all-linear"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dora": ("qwen3", {"target_modules": EVERY, "use_dora": True}),
    "dora over biases": ("qwen2", {"target_modules": ATTENTION, "use_dora": True, "use_rslora": True}),
    "dora with biases": ("qwen2", {"target_modules": ["q_proj", "down_proj"], "use_dora": True, "bias": "all"}),
    "lora_bias": ("llama", {"target_modules": ["q_proj", "o_proj", "down_proj"], "lora_bias": True}),
    "bias": ("qwen2", {"target_modules": ["q_proj"], "bias": "lora_only"}),
}
"""Name -> (model, arguments of LoraConfig)."""


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda name: make_checkpoint(name, tmp_path_factory.mktemp("bases")))


@pytest.fixture(scope="module")
def engines(bases: Callable[[str], Path]) -> Iterator[Callable[[str], LLM]]:
    made: dict[str, LLM] = {}

    def get(name: str) -> LLM:
        if name not in made:
            made[name] = LLM(
                bases(name), device="cpu", dtype="float32", max_model_len=64, block_size=4, max_num_seqs=8, threads=1,
                kv_cache_memory_bytes=1 << 20, use_tqdm_on_load=False, enable_lora=True, max_loras=2,
            )  # fmt: skip
        return made[name]

    yield get
    for llm in made.values():
        llm.shutdown()


def write(base: Path, folder: Path, **config: Any) -> PeftModel:
    """An adapter of random values, as peft saves it, and the model with it."""
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(load_reference(base, torch.float32), LoraConfig(r=4, lora_alpha=6, **config))
        with torch.no_grad():
            for name, value in model.named_parameters():
                if value.requires_grad:
                    scale = 0.3 if "magnitude" in name else 0.2 / value.shape[-1] ** 0.5
                    value += scale * torch.randn_like(value)
        model.save_pretrained(folder)
    return model.eval()


def generate(llm: LLM, prompts: list[list[int]], loras: list[LoRARequest | None]) -> list[Any]:
    return llm.generate([{"prompt_token_ids": p} for p in prompts], GREEDY, use_tqdm=False, lora_request=loras)


@torch.inference_mode()
def check(output: Any, model: torch.nn.Module) -> list[int]:
    """Each token is the argmax of this model, with its log-probability. Returns the tokens."""
    (choice,) = output.outputs
    tokens = list(choice.token_ids)
    logits = model(torch.tensor([[*output.prompt_token_ids, *tokens]])).logits[0, -NEW - 1 : -1].float()
    assert tokens == logits.argmax(-1).tolist()
    told = [p[t].logprob for t, p in zip(tokens, choice.logprobs, strict=True)]
    np.testing.assert_allclose(told, logits.log_softmax(-1)[range(NEW), tokens].numpy(), atol=1e-4)
    return tokens


@pytest.mark.parametrize("case", CASES)
def test_a_variant_is_served_as_peft_computes_it(
    case: str, bases: Callable[[str], Path], engines: Callable[[str], LLM], tmp_path: Path
) -> None:
    """In one batch with the base model and with a plain adapter, which keep the bits they have without it."""
    name, config = CASES[case]
    base, llm = bases(name), engines(name)
    variant, plain = write(base, tmp_path / "variant", **config), write(base, tmp_path / "plain", target_modules=ATTENTION)
    number = 2 * list(CASES).index(case) + 1
    special, usual = (LoRARequest(f"{case} {p}", number + i, str(tmp_path / p)) for i, p in enumerate(("variant", "plain")))
    alone = generate(llm, PROMPTS, [None, usual])
    mixed = generate(llm, [PROMPTS[0], *PROMPTS, PROMPTS[1]], [special, None, usual, special])
    for output, model in ((mixed[0], variant), (mixed[3], variant), (mixed[2], plain)):
        check(output, model)
    said, without = ([(o.outputs[0].token_ids, o.outputs[0].logprobs) for o in outputs] for outputs in (mixed, alone))
    assert said[1:3] == without
    assert said[0] != without[0]
