"""Which architectures this version serves, and the function that reads each one's configuration. Imports no tensor
framework, so that an unsupported model is refused before anything heavy is loaded.

A family may come from outside the repository: an installed package names it in the entry points of the group
`thalweg.models` ("MyModelForCausalLM" -> "package.module:function"). The function turns a configuration into a `ModelSpec`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from thalweg.checkpoint.config import architecture
from thalweg.errors import UnsupportedModelError
from thalweg.models.spec import ModelSpec

GROUP = "thalweg.models"
_FAMILIES = "thalweg.models.families"
ARCHITECTURES: Mapping[str, str] = {
    "Gemma3ForCausalLM": f"{_FAMILIES}.gemma3:gemma3",
    "Glm4ForCausalLM": f"{_FAMILIES}.glm4:glm4",
    "LlamaForCausalLM": f"{_FAMILIES}.llama:llama",
    "LLaMAForCausalLM": f"{_FAMILIES}.llama:llama",
    "MistralForCausalLM": f"{_FAMILIES}.mistral:mistral",
    "Qwen2ForCausalLM": f"{_FAMILIES}.qwen2:qwen2",
    "Qwen3ForCausalLM": f"{_FAMILIES}.qwen3:qwen3",
    "Qwen3MoeForCausalLM": f"{_FAMILIES}.qwen3:qwen3_moe",
}
"""`architectures` entry of config.json -> "module:function"."""


@cache
def _outside() -> Mapping[str, EntryPoint]:
    """Families of installed packages. One that bears the name of a family here is not looked at."""
    return {e.name: e for e in entry_points(group=GROUP) if e.name not in ARCHITECTURES}


def supported(config: Mapping[str, Any]) -> str:
    """The architecture's name. UnsupportedModelError lists what there is."""
    name = architecture(config)
    if name not in ARCHITECTURES and name not in _outside():
        raise UnsupportedModelError(
            f"config.json: architectures: {name!r:.100} is not supported; this version serves "
            + ", ".join(sorted({*ARCHITECTURES, *_outside()}))
        )
    return name


def family(config: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], ModelSpec]:
    """The function that reads this architecture's configuration. Loads no tensor framework either.
    UnsupportedModelError if a package that names it cannot be imported."""
    name = supported(config)
    if name in ARCHITECTURES:
        module, _, function = ARCHITECTURES[name].partition(":")
        found: Callable[[Mapping[str, Any]], ModelSpec] = getattr(import_module(module), function)
        return found
    entry = _outside()[name]
    try:
        outside: Callable[[Mapping[str, Any]], ModelSpec] = entry.load()
    except (ImportError, AttributeError) as e:
        raise UnsupportedModelError(f"{name}: the installed family {entry.value} cannot be imported: {e}") from e
    return outside
