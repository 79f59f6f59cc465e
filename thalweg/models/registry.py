"""The supported architectures, and the function that reads the configuration of each. Imports no tensor framework, so that an
unsupported model is rejected before anything heavy is loaded.

A family may be third-party: an installed package names it in the entry points of the group `thalweg.models`
("MyModelForCausalLM" -> "package.module:function"). The function turns a configuration into a `ModelSpec`.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from thalweg.checkpoint.config import architecture
from thalweg.checkpoint.tail import GENERATES
from thalweg.errors import ThalwegError, UnsupportedModelError
from thalweg.models import names, tying
from thalweg.models.architectures import ARCHITECTURES
from thalweg.models.families import tails
from thalweg.models.families.groups import check_rope
from thalweg.models.name_formats import mark_format
from thalweg.models.spec import ModelSpec
from thalweg.plugins import PluginRegistry, import_attribute

_LIST = PluginRegistry("thalweg.models", ARCHITECTURES)
FALLBACK = "thalweg.models.fallback.declare:build_spec"
"""The function for configurations without a family. Importing it imports transformers."""
INSTALL = "pip install 'thalweg[hf]'"
_GENERATES = "ForCausalLM"
WRAPPERS = {
    "TransformersForCausalLM": False, "TransformersMoEForCausalLM": False, "TransformersEmbeddingModel": True,
    "TransformersMoEEmbeddingModel": True,
}  # fmt: skip
"""Names of vLLM's for whatever class of transformers `model_type` means: does it give vectors?"""
_TAILS = {
    "ForSequenceClassification": tails.classifier, "ForTokenClassification": tails.of_tokens, "Model": tails.embedder,
}  # fmt: skip
"""Suffix of an architecture -> the function that adds this tail to the decoder listed as ...ForCausalLM."""
_CLASSIFIERS = ("BART", "mBART", "PLBart", "MVP", "T5", "mT5", "UMT5")
"""Text-to-text models with `families.source_classifiers`."""
Family = Callable[[Mapping[str, Any]], ModelSpec]


def architectures() -> dict[str, str]:
    """Architecture -> "module:function", those of installed packages too."""
    return _LIST.targets()


def add(name: str, target: str) -> None:
    """Serve an architecture in this process. target: "module:function" of its family, or a served architecture.
    UnsupportedModelError for another target."""
    if ":" not in target:
        found = _entry(target)
        if found is None or found[1]:
            raise UnsupportedModelError(_unknown(target, ""))
        target = architectures()[target]
    _LIST.add(name, target)


def resolve_architecture(config: Mapping[str, Any]) -> str:
    """The architecture's name. UnsupportedModelError names the nearest architecture, or the missing feature. Classes of
    transformers that are unknown here are looked up when it is loaded."""
    name = architecture(config)
    if not foreign(config):
        _base(name)
    return name


def foreign(config: Mapping[str, Any]) -> bool:
    """Is a model to be served through transformers' own module: asked for, or the one way there is? UnsupportedModelError
    where it is and transformers is not installed, or does not do."""
    name, requested = architecture(config), config.get("model_impl", "auto")
    if requested != "transformers" and (requested != "auto" or has(name)):
        return False
    missing = names.missing(name)
    if missing is not None and not missing.fallback and (requested == "auto" or name.startswith("Transformers")):
        raise UnsupportedModelError(_unknown(name, missing.why))
    if not name.endswith(GENERATES) and name not in WRAPPERS:
        if requested == "auto":
            return False
        raise UnsupportedModelError(
            f"config.json: architectures: {name!r:.100}: the fallback to transformers serves classes that generate text; "
            "others need a family: leave --model-impl out"
        )
    if importlib.util.find_spec("transformers") is None:
        raise UnsupportedModelError(_unknown(name, f"transformers may serve it, and is not installed: {INSTALL}"))
    return True


def has(name: str) -> bool:
    """Is there a family for this architecture?"""
    return _entry(name) is not None


def windows(config: Mapping[str, Any]) -> list[int]:
    """Of its mixers: tokens that each sees, 0 for all."""
    return [getattr(mixer, "window", 0) for _, mixer in family(config)(config).mixers]


def family(config: Mapping[str, Any]) -> Family:
    """The function that reads this architecture's configuration. Loads no tensor framework either, except where
    transformers' own module is to serve it."""
    if foreign(config):
        return _fallback_spec
    name, end = _base(architecture(config))
    if end and config.get("is_encoder_decoder") is True:
        raise UnsupportedModelError(
            f"config.json: architectures: {architecture(config)!r:.100}: this text-to-text model's vectors or classes are not "
            f"implemented; classifiers are served of {', '.join(_CLASSIFIERS)}"
        )
    tail = _TAILS.get(end) if end else tails.embedder if "pooling" in config and name.endswith(GENERATES) else None
    return _reader(_LIST.load(name), tail)


def declare(config: Mapping[str, Any], path: str | Path) -> tuple[dict[str, Any], ModelSpec]:
    """The spec of a model, and its configuration. Where the files contradict the configuration about the output matrix, it has
    a mark (`models.tying`), from which `family` gives the same spec, and so has a format of tensor names
    (`models.name_formats`). path: a model directory or file. Errors as of `family`, and of its function."""
    if not foreign(config):
        config = mark_format(config, path, _LIST.load(_base(architecture(config))[0]).__module__)
    spec = base = family(config)(config)
    if spec.pooling is not None:
        if config.get("classifier_from_token") is None:  # no output matrix is read
            return dict(config), spec
        base = _LIST.load(_base(architecture(config))[0])(config)
    found = tying.find_output_matrix(base, path)
    if found is None:
        return dict(config), spec
    marked = {**config, tying.KEY: found}
    return marked, family(marked)(marked)


@functools.cache
def _reader(found: Family, tail: Callable[[ModelSpec, Mapping[str, Any]], ModelSpec] | None) -> Family:
    def read(config: Mapping[str, Any]) -> ModelSpec:
        try:
            spec = found(config)
            check_rope(config, [key for rope in spec.ropes for key in rope.keys])
            spec = tying.adapt(spec, config)
            return tails.apply_causality(spec if tail is None else tail(spec, config), config)
        except ThalwegError:
            raise
        except ValueError as e:  # of a class of `spec`: no single key is wrong
            raise UnsupportedModelError(f"config.json: values that do not go together in {architecture(config)}: {e}") from e

    return read


def _fallback_spec(config: Mapping[str, Any]) -> ModelSpec:
    if config.get(tying.KEY) == tying.OWN:
        config = {**config, "tie_word_embeddings": False}
    try:
        result: ModelSpec = import_attribute(FALLBACK)(config)
    except LookupError as e:
        raise UnsupportedModelError(_unknown(architecture(config), str(e.args[0]), near=True)) from e
    except ImportError as e:
        why = f"transformers may serve it, and what is installed does not do: {e}; pip install -U 'thalweg[hf]'"
        raise UnsupportedModelError(_unknown(architecture(config), why)) from e
    vectors = "pooling" in config or WRAPPERS.get(architecture(config), False)
    return tails.embedder(result, config) if vectors else result


def _base(name: str) -> tuple[str, str]:
    """(the entry of the list that reads an architecture, the end of the name that says which tail a decoder gets)."""
    found = _entry(name)
    if found is None:
        missing = names.missing(name)
        raise UnsupportedModelError(_unknown(name, "" if missing is None else missing.why))
    return found


def _entry(name: str) -> tuple[str, str] | None:
    if name in _LIST:
        return name, ""
    for end in _TAILS:
        base = name.removesuffix(end) + _GENERATES
        if name.endswith(end) and base in _LIST:
            return base, end
    return None


def _unknown(name: str, why: str, near: bool = False) -> str:
    """near: name the nearest all the same. Without a reason they are named."""
    others = ", ".join(difflib.get_close_matches(name, _LIST.names(), n=3, cutoff=0.6)) if near or not why else ""
    reason = f"{why and f': {why}'}{others and f'; nearest are {others}'}"
    return (
        f"config.json: architectures: {name!r:.100} is not supported{reason}; "
        f"`thalweg models` lists all {len(_LIST.names())} that are"
    )
