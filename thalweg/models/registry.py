"""Which architectures this version serves, and the function that reads each one's configuration. Imports no tensor
framework, so that an unsupported model is refused before anything heavy is loaded.

A family may come from outside the repository: an installed package names it in the entry points of the group
`thalweg.models` ("MyModelForCausalLM" -> "package.module:function"). The function turns a configuration into a `ModelSpec`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from thalweg.checkpoint.config import architecture
from thalweg.checkpoint.tail import GENERATES
from thalweg.errors import UnsupportedModelError
from thalweg.models.families import tails
from thalweg.models.spec import ModelSpec
from thalweg.plugins import OpenList

_FAMILIES = "thalweg.models.families"
ARCHITECTURES: Mapping[str, str] = {
    "ArceeForCausalLM": f"{_FAMILIES}.arcee:arcee",
    "BertForSequenceClassification": f"{_FAMILIES}.bert:bert_classifier",
    "BertModel": f"{_FAMILIES}.bert:bert",
    "Cohere2ForCausalLM": f"{_FAMILIES}.cohere:cohere2",
    "CohereForCausalLM": f"{_FAMILIES}.cohere:cohere",
    "Ernie4_5_MoeForCausalLM": f"{_FAMILIES}.ernie4_5:ernie4_5_moe",
    "Ernie4_5ForCausalLM": f"{_FAMILIES}.ernie4_5:ernie4_5",
    "Exaone4ForCausalLM": f"{_FAMILIES}.exaone4:exaone4",
    "FalconForCausalLM": f"{_FAMILIES}.falcon:falcon",
    "Gemma2ForCausalLM": f"{_FAMILIES}.gemma:gemma2",
    "Gemma3ForCausalLM": f"{_FAMILIES}.gemma3:gemma3",
    "Gemma3ForConditionalGeneration": f"{_FAMILIES}.multimodal:gemma3",
    "GemmaForCausalLM": f"{_FAMILIES}.gemma:gemma",
    "Glm4ForCausalLM": f"{_FAMILIES}.glm4:glm4",
    "Glm4MoeForCausalLM": f"{_FAMILIES}.glm4_moe:glm4_moe",
    "GlmForCausalLM": f"{_FAMILIES}.glm:glm",
    "GPT2LMHeadModel": f"{_FAMILIES}.gpt:gpt2",
    "GPTJForCausalLM": f"{_FAMILIES}.gpt:gptj",
    "GPTNeoXForCausalLM": f"{_FAMILIES}.gpt_neox:gpt_neox",
    "GptOssForCausalLM": f"{_FAMILIES}.gpt_oss:gpt_oss",
    "GraniteForCausalLM": f"{_FAMILIES}.granite:granite",
    "GraniteMoeForCausalLM": f"{_FAMILIES}.granite:granite_moe",
    "HunYuanDenseV1ForCausalLM": f"{_FAMILIES}.hunyuan:hunyuan",
    "LlamaForCausalLM": f"{_FAMILIES}.llama:llama",
    "LLaMAForCausalLM": f"{_FAMILIES}.llama:llama",
    "MiniMaxM2ForCausalLM": f"{_FAMILIES}.minimax_m2:minimax_m2",
    "Ministral3ForCausalLM": f"{_FAMILIES}.ministral3:ministral3",
    "MinistralForCausalLM": f"{_FAMILIES}.mistral:mistral",
    "Mistral3ForConditionalGeneration": f"{_FAMILIES}.multimodal:mistral3",
    "MistralForCausalLM": f"{_FAMILIES}.mistral:mistral",
    "MixtralForCausalLM": f"{_FAMILIES}.mixtral:mixtral",
    "NemotronForCausalLM": f"{_FAMILIES}.nemotron:nemotron",
    "Olmo2ForCausalLM": f"{_FAMILIES}.olmo2:olmo2",
    "Olmo3ForCausalLM": f"{_FAMILIES}.olmo2:olmo3",
    "OlmoeForCausalLM": f"{_FAMILIES}.olmoe:olmoe",
    "OPTForCausalLM": f"{_FAMILIES}.opt:opt",
    "Phi3ForCausalLM": f"{_FAMILIES}.phi3:phi3",
    "PhiForCausalLM": f"{_FAMILIES}.phi:phi",
    "Qwen2_5_VLForConditionalGeneration": f"{_FAMILIES}.multimodal:qwen2_5_vl",
    "Qwen2ForCausalLM": f"{_FAMILIES}.qwen2:qwen2",
    "Qwen2MoeForCausalLM": f"{_FAMILIES}.qwen2_moe:qwen2_moe",
    "Qwen3_5ForCausalLM": f"{_FAMILIES}.qwen3_next:qwen3_5",
    "Qwen3_5ForConditionalGeneration": f"{_FAMILIES}.qwen3_next:qwen3_5",
    "Qwen3_5MoeForCausalLM": f"{_FAMILIES}.qwen3_next:qwen3_5_moe",
    "Qwen3_5MoeForConditionalGeneration": f"{_FAMILIES}.qwen3_next:qwen3_5_moe",
    "Qwen3ForCausalLM": f"{_FAMILIES}.qwen3:qwen3",
    "Qwen3MoeForCausalLM": f"{_FAMILIES}.qwen3:qwen3_moe",
    "Qwen3NextForCausalLM": f"{_FAMILIES}.qwen3_next:qwen3_next",
    "Qwen3VLForConditionalGeneration": f"{_FAMILIES}.multimodal:qwen3_vl",
    "RobertaForMaskedLM": f"{_FAMILIES}.roberta:roberta",
    "RobertaForSequenceClassification": f"{_FAMILIES}.roberta:roberta_classifier",
    "RobertaModel": f"{_FAMILIES}.roberta:roberta",
    "SeedOssForCausalLM": f"{_FAMILIES}.seed_oss:seed_oss",
    "SmolLM3ForCausalLM": f"{_FAMILIES}.smollm3:smollm3",
    "StableLmForCausalLM": f"{_FAMILIES}.stablelm:stablelm",
    "Starcoder2ForCausalLM": f"{_FAMILIES}.starcoder2:starcoder2",
    "WhisperForConditionalGeneration": f"{_FAMILIES}.whisper:whisper",
    "XLMRobertaForSequenceClassification": f"{_FAMILIES}.roberta:roberta_classifier",
    "XLMRobertaModel": f"{_FAMILIES}.roberta:roberta",
}
"""`architectures` entry of config.json -> "module:function"."""


_LIST = OpenList("thalweg.models", ARCHITECTURES)
_GENERATES = "ForCausalLM"
_TAILS = {"ForSequenceClassification": tails.classifier, "Model": tails.embedder}
"""What the end of an architecture's name makes of a decoder that is in the list as ...ForCausalLM."""
Family = Callable[[Mapping[str, Any]], ModelSpec]


def served() -> dict[str, str]:
    """Architecture -> "module:function", those of installed packages too."""
    return _LIST.targets()


def supported(config: Mapping[str, Any]) -> str:
    """The architecture's name. UnsupportedModelError says what is nearest."""
    name = architecture(config)
    _base(name)
    return name


def windows(config: Mapping[str, Any]) -> list[int]:
    """Of its layers: tokens that each sees, 0 for all."""
    return [getattr(layer.mixer, "window", 0) for layer in family(config)(config).layers]


def family(config: Mapping[str, Any]) -> Family:
    """The function that reads this architecture's configuration. Loads no tensor framework either."""
    name, end = _base(architecture(config))
    found: Family = _LIST.load(name)
    tail = _TAILS.get(end) if end else tails.embedder if "pooling" in config and name.endswith(GENERATES) else None
    return found if tail is None else lambda config: tail(found(config), config)


def _base(name: str) -> tuple[str, str]:
    """(the entry of the list that reads an architecture, the end of the name that says which tail a decoder gets)."""
    if name in _LIST:
        return name, ""
    for end in _TAILS:
        base = name.removesuffix(end) + _GENERATES
        if name.endswith(end) and base in _LIST:
            return base, end
    near = ", ".join(difflib.get_close_matches(name, _LIST.names(), n=3, cutoff=0.6))
    raise UnsupportedModelError(
        f"config.json: architectures: {name!r:.100} is not supported{near and f'; nearest are {near}'}; "
        f"`thalweg models` lists all {len(_LIST.names())} that are"
    )
