"""A conversation, and one more in the same batch: thalweg as-vllm examples/vllm_names/chat.py"""

from vllm import LLM, SamplingParams

llm = LLM("thalweg-nano", max_model_len=512)
params = llm.get_default_sampling_params()
params.max_tokens = 16
conversations = [
    [{"role": "user", "content": "What is 2 + 5?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Spell stone backwards."}],
]
for output in llm.chat(conversations, params, use_tqdm=False):
    print(output.outputs[0].text)

tokenizer = llm.get_tokenizer()  # transformers' own, where that is installed
text = tokenizer.apply_chat_template(conversations[0], tokenize=False, add_generation_prompt=True)
(again,) = llm.generate(text, SamplingParams(temperature=0, max_tokens=16), use_tqdm=False)
print(again.outputs[0].text)
