"""Answers that keep to a schema, a choice or a regex: thalweg as-vllm examples/vllm_names/structured.py"""

import json

from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

schema = {"type": "object", "properties": {"name": {"enum": ["Ada", "Bo"]}, "age": {"type": "integer", "maximum": 99}},
          "required": ["name", "age"], "additionalProperties": False}  # fmt: skip
llm = LLM(model="thalweg-nano", max_model_len=512)
for asked in ({"choice": ["yes", "no"]}, {"regex": r"[0-9]{3}-[a-z]{2}"}, {"json": schema}):
    params = SamplingParams(max_tokens=60, structured_outputs=StructuredOutputsParams(**asked))
    text = llm.generate("Answer: ", params, use_tqdm=False)[0].outputs[0].text
    print(json.loads(text) if "json" in asked else text)
