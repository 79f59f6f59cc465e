"""Which architectures this version serves, and the function that reads each one's configuration. Imports no tensor
framework, so that an unsupported model is refused before anything heavy is loaded.

A family may come from outside the repository: an installed package names it in the entry points of the group
`thalweg.models` ("MyModelForCausalLM" -> "package.module:function"). The function turns a configuration into a `ModelSpec`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from thalweg.checkpoint.config import architecture
from thalweg.errors import UnsupportedModelError
from thalweg.models.spec import ModelSpec
from thalweg.plugins import OpenList

_FAMILIES = "thalweg.models.families"
ARCHITECTURES: Mapping[str, str] = {
    "BertModel": f"{_FAMILIES}.bert:bert",
    "Gemma3ForCausalLM": f"{_FAMILIES}.gemma3:gemma3",
    "Glm4ForCausalLM": f"{_FAMILIES}.glm4:glm4",
    "LlamaForCausalLM": f"{_FAMILIES}.llama:llama",
    "LLaMAForCausalLM": f"{_FAMILIES}.llama:llama",
    "MistralForCausalLM": f"{_FAMILIES}.mistral:mistral",
    "Qwen2ForCausalLM": f"{_FAMILIES}.qwen2:qwen2",
    "Qwen3ForCausalLM": f"{_FAMILIES}.qwen3:qwen3",
    "Qwen3NextForCausalLM": f"{_FAMILIES}.qwen3_next:qwen3_next",
    "Qwen3_5ForCausalLM": f"{_FAMILIES}.qwen3_next:qwen3_5",
    "Qwen3MoeForCausalLM": f"{_FAMILIES}.qwen3:qwen3_moe",
}
"""`architectures` entry of config.json -> "module:function"."""


_LIST = OpenList("thalweg.models", ARCHITECTURES)


def supported(config: Mapping[str, Any]) -> str:
    """The architecture's name. UnsupportedModelError lists what there is."""
    name = architecture(config)
    if name not in _LIST:
        raise UnsupportedModelError(
            f"config.json: architectures: {name!r:.100} is not supported; this version serves " + ", ".join(_LIST.names())
        )
    return name


def windows(config: Mapping[str, Any]) -> list[int]:
    """Of its layers: tokens that each sees, 0 for all."""
    return [getattr(layer.mixer, "window", 0) for layer in family(config)(config).layers]


def family(config: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], ModelSpec]:
    """The function that reads this architecture's configuration. Loads no tensor framework either."""
    found: Callable[[Mapping[str, Any]], ModelSpec] = _LIST.load(supported(config))
    return found
