"""Decides whether a model generates text, or returns vectors or scores: by the user's options, else by the model's files, else
by its class name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from thalweg.errors import CheckpointError, ConfigError
from thalweg.options.model import TailOptions

GENERATES = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
"""Ends of the class names of generative models. They generate text unless options or files request pooling."""
CLASSIFIES = ("ForSequenceClassification", "ForTokenClassification", "RewardModel")
MODES = {"CLS": "cls", "LAST": "last", "MEAN": "mean"}
"""`pooling_type` of a pooler configuration -> `Pooling.mode` in models.tail."""
MAX_TOKENS = 1024
TOKENS = ("ALL", "STEP")
"""Values of `pooling_type` for results per token."""
_TOKENS = ("step_tag_id", "returned_token_ids")
_POOLER = ("pooling_type", "seq_pooling_type", "tok_pooling_type", "use_activation", "normalize", *_TOKENS)


def decide(
    config: dict[str, Any], name: str, tail: TailOptions, beside: Callable[[], dict[str, Any] | None], override: Any = None
) -> None:
    """Set config["pooling"] for a pooling model, and remove it for a generative one. name: the architecture. beside: returns
    the pooling of sentence-transformers' files, or None. override: the user's replacement. ConfigError if the options do not
    fit the model."""
    generates = name.endswith(GENERATES)
    _check(name, tail, generates)
    own = config.pop("pooling", None)
    if isinstance(own, str):  # some families' files have the pooling type under this key
        config.setdefault("pooling_type", own)
    requested = override is not None or tail.runner == "pooling" or tail.convert == "embed"
    found: Any = override
    if found is None and (requested or not generates or (tail.runner == tail.convert == "auto")):
        found = beside()
    if generates and not requested and "mode" not in (found or {}):
        if tail.pooler is not None:
            raise ConfigError(f"pooler_config: {name} generates text; add --runner pooling, or remove the flag")
        return
    pooler = _pooler(tail.pooler or {})
    if found is None and not requested and not pooler:
        return
    found = {} if found is None else found
    config["pooling"] = {**found, **pooler} if isinstance(found, dict) else found


def _check(name: str, tail: TailOptions, generates: bool) -> None:
    if tail.runner == "generate" and not generates:
        raise ConfigError(f"runner: {name} gives vectors or scores and generates no text; leave it at auto")
    if tail.runner == "generate" and tail.convert in ("embed", "classify"):
        raise ConfigError(f"convert: {tail.convert} goes with --runner pooling; leave one of the two out")
    if tail.runner == "pooling" and tail.convert == "none" and generates:
        raise ConfigError(f"convert: {name} generates text, so --runner pooling needs --convert embed (or auto)")
    if tail.convert == "classify" and not name.endswith(CLASSIFIES):
        raise ConfigError(f"convert: {name} has no head that was trained to classify; this version makes none")
    if tail.convert == "embed" and name.endswith(CLASSIFIES):
        raise ConfigError(f"convert: {name} classifies, and this version cannot compute its embeddings; leave it at auto")


def _pooler(settings: Mapping[str, Any]) -> dict[str, Any]:
    """--pooler-config in the form of `sentence`."""
    result: dict[str, Any] = {}
    steps = False
    for key, value in settings.items():
        if key not in _POOLER:
            raise ConfigError(f"pooler_config: {key!r:.80} is not supported; this version has {', '.join(_POOLER)}")
        if value is None:
            continue
        if key.endswith("pooling_type"):
            known = {"pooling_type": (*MODES, *TOKENS), "seq_pooling_type": (*MODES,), "tok_pooling_type": TOKENS}[key]
            if not isinstance(value, str) or value.upper() not in known:
                raise ConfigError(f"pooler_config: {key}: must be one of {', '.join(known)}, not {value!r:.80}")
            if value.upper() in MODES:
                result["mode"] = MODES[value.upper()]
            steps = steps or value.upper() == "STEP"
        elif key in _TOKENS:
            result[key] = _ids(key, value)
        elif not isinstance(value, bool):
            raise ConfigError(f"pooler_config: {key}: must be true or false, not {value!r:.80}")
        else:
            result["normalise"] = value
    if steps and "step_tag_id" not in result:
        raise ConfigError("pooler_config: step_tag_id: STEP needs the id of the token that ends a step")
    return result


def _ids(key: str, value: Any) -> Any:
    """A token's id, or a list of integers. ConfigError names the key."""
    one = key == "step_tag_id"
    ids = [value] if one else value
    if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= 0 for i in ids):
        raise ConfigError(f"pooler_config: {key}: must be {'an integer' if one else 'a list of integers'} from 0")
    return value


def token_ids(tokens: Any, path: Path) -> list[int]:
    """The ids of `classifier_from_token`. CheckpointError for a token that the model's tokenizer lacks."""
    from thalweg.checkpoint.tokenizer import load_tokenizer  # slow: it reads the vocabulary

    if not isinstance(tokens, list) or not tokens or not all(isinstance(t, str) for t in tokens) or len(tokens) > MAX_TOKENS:
        raise CheckpointError(f"config.json: classifier_from_token: must be a list of tokens as text, not {tokens!r:.80}")
    tokenizer = load_tokenizer(path)
    found = {t: tokenizer.id_of(t) for t in tokens}
    missing = [t for t, i in found.items() if i is None]
    if missing:
        raise CheckpointError(f"config.json: classifier_from_token: {missing[0]!r:.80} is not a token of the model's tokenizer")
    return [i for i in found.values() if i is not None]
