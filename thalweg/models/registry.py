"""Which architectures this version serves, and the module that builds each. Imports no tensor framework, so that an
unsupported model is refused before anything heavy is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from thalweg.checkpoint.config import architecture
from thalweg.errors import UnsupportedModelError
from thalweg.models.settings import Settings

ARCHITECTURES: Mapping[str, str] = {
    "LlamaForCausalLM": "thalweg.models.llama:llama",
    "LLaMAForCausalLM": "thalweg.models.llama:llama",
    "MistralForCausalLM": "thalweg.models.mistral:mistral",
    "Qwen2ForCausalLM": "thalweg.models.qwen2:qwen2",
    "Qwen3ForCausalLM": "thalweg.models.qwen3:qwen3",
}
"""`architectures` entry of config.json -> "module:function"; the function turns the configuration into settings.Settings."""


def supported(config: Mapping[str, Any]) -> str:
    """The architecture's name. UnsupportedModelError lists what there is."""
    name = architecture(config)
    if name not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"config.json: architectures: {name!r:.100} is not supported; this version serves "
            + ", ".join(sorted(ARCHITECTURES))
        )
    return name


def family(config: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Settings]:
    """The function that reads this architecture's configuration. Loads no tensor framework either."""
    module, _, function = ARCHITECTURES[supported(config)].partition(":")
    found: Callable[[Mapping[str, Any]], Settings] = getattr(import_module(module), function)
    return found
