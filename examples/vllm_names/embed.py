"""Vectors of texts, and how alike they are: thalweg as-vllm examples/vllm_names/embed.py"""

from vllm import LLM, EngineArgs, PoolingParams

args = EngineArgs(model="thalweg-nano", runner="pooling", convert="embed", max_model_len=256)
llm = LLM.from_engine_args(args)
texts = ["a stone in the river", "a rock in the stream", "3 + 4 = 7"]
vectors = [o.outputs.embedding for o in llm.embed(texts, pooling_params=PoolingParams(), use_tqdm=False)]
for text, vector in zip(texts, vectors, strict=True):
    alike = sum(a * b for a, b in zip(vectors[0], vector, strict=True))
    print(f"{alike:.3f} {len(vector)} {text}")
