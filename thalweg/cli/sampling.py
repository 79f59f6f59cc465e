"""Sampling flags of `generate` and `chat`: the fields of SamplingParams, under the names clients know."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from thalweg.errors import ConfigError, RequestError
from thalweg.options.values import argument, human_int, integer, number
from thalweg.params import NUMBERS, SamplingParams

FLAGS = {
    "max-tokens": (human_int, "most tokens of an answer"),
    **{
        f.name.replace("_", "-"): (integer if f.kind is int else number, f.range.help)
        for f in NUMBERS.values() if f.range.sampler
    },
}  # fmt: skip
NAMES = frozenset((*(n.replace("-", "_") for n in FLAGS), "stop", "ignore_eos", "sampling_seed", "min_tokens"))


def add(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    for name, (read, text) in FLAGS.items():
        group.add_argument(f"--{name}", type=argument(read), metavar=name.split("-")[-1].upper(), help=text)
    group.add_argument("--min-tokens", type=argument(integer), metavar="TOKENS", help="no stop before this many tokens")
    group.add_argument(
        "--sampling-seed", type=argument(integer), metavar="SEED", help="seed of this request (--seed is the engine's)"
    )
    group.add_argument("--stop", action="append", metavar="TEXT", help="stop at this text; may be repeated")
    group.add_argument("--ignore-eos", action="store_true", default=None, help="do not stop at the end token")


def read_flags(namespace: argparse.Namespace) -> dict[str, Any]:
    """The parameters that flags gave, under the names of SamplingParams and of requests."""
    found = {n: getattr(namespace, n) for n in NAMES if getattr(namespace, n) is not None}
    if "sampling_seed" in found:
        found["seed"] = found.pop("sampling_seed")
    return found


def params(values: Mapping[str, Any], defaults: Mapping[str, Any], **fixed: Any) -> SamplingParams:
    """SamplingParams of the given values over the model's defaults. ConfigError names the flag."""
    unknown = sorted(set(values) - (NAMES - {"sampling_seed"} | {"seed"}))
    if unknown:
        raise ConfigError(f"{unknown[0]}: is no sampling parameter here; there are {', '.join(sorted(NAMES))}")
    try:
        return SamplingParams(**{"max_tokens": None, **defaults, **values, **fixed})
    except RequestError as e:
        flag = "sampling-seed" if e.param == "seed" else (e.param or "").replace("_", "-")
        raise ConfigError(f"--{flag}: {e}") from None
