"""Adapters that the server serves as models of their own, by the names of `--lora-modules`."""

from __future__ import annotations

from thalweg.async_llm import AsyncLLM
from thalweg.errors import ConfigError
from thalweg.lora import LoRARequest, read_modules
from thalweg.server.settings import ServerSettings

Adapters = dict[str, LoRARequest]
"""By the name that requests give as `model`."""


async def load_modules(engine: AsyncLLM, settings: ServerSettings) -> Adapters:
    """Load the adapters of `--lora-modules`. ConfigError for a name that is taken, and what `AsyncLLM.add_lora` raises."""
    modules = read_modules(settings.lora_modules or [])
    taken = next((m.lora_name for m in modules if m.lora_name in engine.model_names), None)
    if taken is not None:
        raise ConfigError(f"--lora-modules: {taken}: the model itself has this name; give the adapter another one")
    for module in modules:
        await engine.add_lora(module)
    return {module.lora_name: module for module in modules}
