"""LoRARequest: the adapter of a request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.errors import ConfigError, NotSupportedError, RequestError


@dataclass(slots=True, eq=False)
class LoRARequest:
    """An adapter by its name, a number above 0 of the caller's choice, and its folder or file. Requests with equal names are
    equal. RequestError names a wrong field."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    """Not used: shapes and names decide whether an adapter fits."""
    tensorizer_config_dict: dict[str, Any] | None = None
    load_inplace: bool = False
    """Read the files again, though the name is known. Running requests keep the adapter they began with."""
    is_3d_lora_weight: bool = False
    """Not used: the files show whether they have a tensor for all experts or one for each."""

    def __post_init__(self) -> None:
        for name in ("lora_name", "lora_path"):
            if not isinstance(value := getattr(self, name), str) or not value:
                raise RequestError(f"{name} must be text of at least one character, not {value!r:.80}", name)
        if type(self.lora_int_id) is not int or self.lora_int_id < 1:
            raise RequestError(f"lora_int_id must be a whole number of at least 1, not {self.lora_int_id!r:.80}", "lora_int_id")
        if not isinstance(self.base_model_name, str | None):
            raise RequestError(f"base_model_name must be text, not {self.base_model_name!r:.80}", "base_model_name")
        if self.tensorizer_config_dict is not None:
            raise NotSupportedError("tensorizer_config_dict: files of that kind are not read; save the adapter as safetensors")

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def path(self) -> str:
        return self.lora_path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoRARequest) and self.lora_name == other.lora_name

    def __hash__(self) -> int:
        return hash(self.lora_name)


def read_modules(words: Sequence[str]) -> list[LoRARequest]:
    """The adapters of `--lora-modules`: name=path, or an object in JSON with "name", "path" and "base_model_name".
    ConfigError names the wrong word."""
    result: dict[str, LoRARequest] = {}
    for number, word in enumerate(words, 1):
        name, path, base = _read_module(word)
        try:
            module = LoRARequest(name, number, path, base)
        except RequestError as e:
            raise ConfigError(f"{word:.200}: {e}") from None
        if name in result:
            raise ConfigError(f"{name:.200}: two adapters have this name")
        result[name] = module
    return list(result.values())


def _read_module(word: str) -> tuple[str, str, str | None]:
    """(name, path, base_model_name)."""
    if not word.startswith("{"):
        name, equals, path = word.partition("=")
        if not equals:
            raise ConfigError(f"{word:.200}: must be name=path, or an object in JSON with name and path")
        return name, path, None
    try:
        value = json.loads(word)
    except ValueError as e:
        raise ConfigError(f"{word:.200}: is no JSON: {e}") from None
    if unknown := sorted(value.keys() - {"name", "path", "base_model_name"}):
        raise ConfigError(f"{word:.200}: {unknown[0]}: an adapter has name, path and base_model_name")
    return value.get("name", ""), value.get("path", ""), value.get("base_model_name")
