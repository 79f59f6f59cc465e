"""Texts continued, as programs for vLLM do it: thalweg as-vllm examples/vllm_names/basic.py"""

from vllm import LLM, SamplingParams

prompts = ["3 + 4 =", "reverse: stone", {"prompt_token_ids": [5, 6, 7]}]
params = SamplingParams(temperature=0.8, top_p=0.95, seed=1, max_tokens=8)

llm = LLM(model="thalweg-nano", max_model_len=512, gpu_memory_utilization=0.5, enforce_eager=True, trust_remote_code=False)
for output in llm.generate(prompts, params, use_tqdm=False):
    print(f"{output.prompt!r} -> {output.outputs[0].text!r} ({output.outputs[0].finish_reason})")
