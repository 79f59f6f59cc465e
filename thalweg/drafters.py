"""The open list of drafters, and how a method of `speculative_config` is checked. Imports no drafter until one is named.

An installed package adds a drafter with an entry point of the group `thalweg.drafters` ("NAME = package.module:Class"). The
class is an `engine.control.speculation.drafter.Drafter`, which declares the keys of `speculative_config` it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from thalweg.errors import ConfigError
from thalweg.plugins import PluginRegistry
from thalweg.refused import SAMPLE_METHODS, SPECULATIVE_FIELDS, SPECULATIVE_HINTS, SPECULATIVE_METHODS

_HERE = "thalweg.engine.control.speculation"
DRAFTERS: Mapping[str, str] = {
    "dflash": f"{_HERE}.dflash:DFlashDrafter",
    "draft_model": f"{_HERE}.draft_model:ModelDrafter",
    "dspark": f"{_HERE}.dspark:DSparkDrafter",
    "eagle": f"{_HERE}.eagle:EagleDrafter",
    "eagle3": f"{_HERE}.eagle3:Eagle3Drafter",
    "mtp": f"{_HERE}.mtp:MTPDrafter",
    "ngram": f"{_HERE}.ngram:NGramDrafter",
    "peagle": f"{_HERE}.peagle:PEagleDrafter",
    "suffix": f"{_HERE}.suffix:SuffixDrafter",
}
_LIST = PluginRegistry("thalweg.drafters", DRAFTERS)

METHOD, TOKENS, MODEL = "method", "num_speculative_tokens", "model"
"""Keys of every method, and the key of those that run a draft model."""
RANKS = "draft_tensor_parallel_size"
"""The key of methods with a draft model: the ranks that divide it."""
BOUNDS = "num_speculative_tokens_per_batch_size"
"""The key of every method that bounds the drafts of a sequence by the number of running ones."""
SAMPLING, SAMPLINGS = "draft_sample_method", ("probabilistic", "greedy")
"""The key of methods that choose drafts by logits, and its values."""
QUANTIZATION, CACHE_DTYPE = "quantization", "kv_cache_dtype"
"""Keys of methods with layers: the format of their weights, and the dtype of their cache."""
PARALLEL = "parallel_drafting"
"""The key of methods whose drafts come from one pass."""
REVISION = "revision"
"""The key of a hub id's branch, tag or commit."""
ALIASES = {"ngram_gpu": "ngram"}
"""Names of vLLM for methods that have another here."""
DRAFT_MODEL = "draft_model"
"""The method of a checkpoint that is a whole model."""
MTP = "mtp"
MTP_NAMES = frozenset(
    f"{family}_{MTP}" for family in (
        "deepseek", "ernie", "exaone4_5", "exaone_moe", "glm4_moe", "glm4_moe_lite", "glm_ocr", "hy_v3", "longcat_flash",
        "mimo", "mimo_v2", "nemotron_h", "openpangu", "pangu_ultra_moe", "qwen3_5", "qwen3_next", "step3p5",
    )
)  # fmt: skip
"""Names of vLLM for the method `mtp`. The model decides which module is meant."""
MOST_DRAFTS = 64
"""Most drafts of a sequence in a step."""


class SpeculationConfig(msgspec.Struct, kw_only=True, frozen=True):
    """A drafter, and its configuration."""

    method: str = "ngram"
    tokens: int
    """Drafts of a sequence in a step, at most."""
    options: dict[str, Any] = {}
    """Values of the keys that the drafter declares, defaults included."""
    remembers: bool = True
    """Does the proposer of the device keep something of every token? False: drafts may begin at any token."""
    bounds: tuple[tuple[int, int], ...] = ()
    """(sequences, drafts): at most so many drafts of a sequence, from so many sequences on. Ascending."""


@dataclass(frozen=True, slots=True)
class DrafterOption:
    """A key of `speculative_config` that a drafter reads."""

    check: Callable[[Any], Any]
    """Returns the value, or raises ValueError with a message."""
    default: Any = None


def whole(low: int, high: int) -> Callable[[Any], int]:
    """A check of whole numbers."""

    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}, not {value!r}")
        return value

    return check


def number(low: float, high: float) -> Callable[[Any], float]:
    """A check of numbers."""

    def check(value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"must be a number from {low} to {high}, not {value!r}")
        return float(value)

    return check


def one_of(names: Collection[str]) -> Callable[[Any], str]:
    """A check of names."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise ValueError(f"must be one of {', '.join(names)}, not {value!r:.80}")
        return value

    return check


read_sampling = one_of(SAMPLINGS)
"""A check of SAMPLING."""


def read_bounds(value: Any) -> tuple[tuple[int, int], ...]:
    """A check of BOUNDS: {"FIRST-LAST": drafts} or [[first, last, drafts], ...], in ascending order. Sequences between two
    ranges, and after the last one, have the bound of the range before."""
    form = (
        'must be {"1-4": 3, "5-64": 1} or [[1, 4, 3], [5, 64, 1]]: ranges of sequences, ascending, and the most drafts of each'
    )
    rows = [(*k.split("-"), v) for k, v in value.items()] if isinstance(value, Mapping) else value
    try:
        ranges = [(int(first), int(last), drafts) for first, last, drafts in rows]
    except (TypeError, ValueError):
        raise ValueError(f"{form}, not {value!r:.200}") from None
    before = 0
    for first, last, drafts in ranges:
        if type(drafts) is not int or not 0 <= drafts <= MOST_DRAFTS or not before < first <= last:
            raise ValueError(f"{form}, not {value!r:.200}")
        before = last
    return tuple((first, drafts) for first, _, drafts in ranges)


def _check_foreign(name: str, value: Any, unknown: str) -> str:
    """The problem of a field that no option of the drafter reads: that of a field of vLLM, or `unknown`. "": none."""
    if name in SPECULATIVE_HINTS:
        return ""
    if name == "rejection_sample_method" and (value is None or value in SAMPLE_METHODS):
        why = SAMPLE_METHODS[value] if value else ""
        return f"{name}: {value}: {why}; leave it out" if why else ""
    if name not in SPECULATIVE_FIELDS:
        return unknown
    harmless = value is None or value is False or (value == 1 and name.endswith("tensor_parallel_size"))
    return "" if harmless else f"{name}: {SPECULATIVE_FIELDS[name]}; leave it out"


def read_name(value: Any) -> str:
    """A check of REVISION."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be a name, not {value!r}")
    return value


def drafter_names() -> list[str]:
    """All methods."""
    return _LIST.names()


def load_drafter(method: str) -> Any:
    """The class of a method. KeyError for an unknown name."""
    return _LIST.load(method)


def configure(given: Mapping[str, Any]) -> SpeculationConfig:
    """The configuration of a `speculative_config`. ConfigError lists all errors."""
    method = given.get(METHOD)
    if isinstance(method, str) and method in MTP_NAMES and method not in _LIST:
        method = MTP
    method = ALIASES.get(method, method) if isinstance(method, str) else method
    if method == "eagle3" and given.get(PARALLEL) is True:  # as vLLM names P-EAGLE
        method = "peagle"
    if not isinstance(method, str) or method not in _LIST:
        why = f": {SPECULATIVE_METHODS[method]}" if isinstance(method, str) and method in SPECULATIVE_METHODS else ""
        raise ConfigError(f"speculative_config: {METHOD}: must be one of {', '.join(_LIST.names())}, not {method!r}{why}")
    drafter = load_drafter(method)
    fields = {TOKENS: DrafterOption(whole(1, MOST_DRAFTS)), **drafter.options, BOUNDS: DrafterOption(read_bounds, default=())}
    known = (METHOD, *fields)
    problems = [
        problem for k, value in given.items() if k not in known
        and (problem := _check_foreign(k, value, f"{k!r} is not supported; {method} has {', '.join(known)}"))
    ]  # fmt: skip
    values: dict[str, Any] = {}
    for name, option in fields.items():
        value = given.get(name)
        if value is None and (name != TOKENS or option.default is not None):
            values[name] = option.default
            continue
        try:
            values[name] = option.check(value)
        except ValueError as e:
            problems.append(f"{name}: {e}")
    if not problems:
        tokens, bounds = values.pop(TOKENS), values.pop(BOUNDS)
        try:
            return SpeculationConfig(method=method, tokens=tokens, options=drafter.settle(values), bounds=bounds)
        except ValueError as e:
            problems.append(str(e))
    raise ConfigError(*(f"speculative_config: {p}" for p in problems))
