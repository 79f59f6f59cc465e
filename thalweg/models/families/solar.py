"""Solar Pro: Llama with skip connections of the residual stream over several layers."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer, real
from thalweg.errors import CheckpointError
from thalweg.models.families.common import layer_count
from thalweg.models.families.llama import llama
from thalweg.models.spec import ModelSpec, StreamSkip

SAVES, READS = ("bskcn_1", "bskcn_2"), ("bskcn_3", "bskcn_4")
"""Keys with the layers before which the stream is saved, in two places, and mixed with what is in them."""
ABSENT = {"bskcn_1": [12, 20, 32, 44], "bskcn_2": [20, 32], "bskcn_3": [16, 24, 36, 48], "bskcn_4": [28, 40]}
WEIGHTS = [0.9, 0.8]
"""Of the saved stream, in training and after it."""


def solar(config: Config) -> ModelSpec:
    count, result = layer_count(config), llama(config)
    saves, reads = ([_numbers(config, key, count) for key in keys] for keys in (SAVES, READS))
    for place, numbers in enumerate(reads):
        if numbers and (not saves[place] or min(numbers) < min(saves[place])):
            raise CheckpointError(
                f"config.json: {READS[place]}: layer {min(numbers)} reads what no layer of {SAVES[place]} saves"
            )
    section = WEIGHTS if config.get("bskcn_tv") is None else config["bskcn_tv"]
    if not isinstance(section, list) or len(section) != 2:
        raise CheckpointError("config.json: bskcn_tv: must be two numbers")
    weight = real({"bskcn_tv": section[1]}, "bskcn_tv", 0, 1)
    layers = list(result.layers)
    for i in range(count):
        here = [tuple(place for place in (0, 1) if i in each[place]) for each in (saves, reads)]
        if any(here):
            layers[i] = replace(layers[i], around=StreamSkip(saves=here[0], reads=here[1], weight=weight))
    return replace(result, layers=tuple(layers))


def _numbers(config: Config, key: str, count: int) -> tuple[int, ...]:
    section = ABSENT[key] if config.get(key) is None else config[key]
    if not isinstance(section, list):
        raise CheckpointError(f"config.json: {key}: must be a list of layer numbers")
    return tuple(integer({key: n}, key, low=0, high=count - 1) for n in section)
