"""The configuration of a checkpoint, with the user's overrides. Planning, serving and building all read it here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from thalweg.checkpoint import gguf
from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.hub import resolve_model
from thalweg.checkpoint.native import is_native
from thalweg.checkpoint.weights import open_weights
from thalweg.config import EngineArgs
from thalweg.errors import ConfigError
from thalweg.quantization import grids
from thalweg.quantization import registry as formats
from thalweg.quantization.online import METHODS, NARROW

if TYPE_CHECKING:
    from thalweg.models.spec import ModelSpec


def native(args: EngineArgs) -> bool | None:
    """Is a model to be read in Mistral's format? None: by the files found. ConfigError where two flags differ."""
    config, load = args.config_format, args.load_format
    if (config == "hf" and load == "mistral") or (config == "mistral" and load not in ("auto", "dummy", "mistral")):
        raise ConfigError(
            f"config_format {config} and load_format {load} are of different formats: Mistral's configuration and weights "
            "belong together, so set both to mistral, or omit both"
        )
    return True if "mistral" in (config, load) else False if "hf" in (config, load) else None


def find(args: EngineArgs) -> Path:
    """The directory of the model, downloaded if necessary. CheckpointError or ConfigError."""
    return resolve_model(
        args.model, revision=args.revision, download_dir=args.download_dir, token=args.hf_token, ignore=args.ignore_patterns,
        native=native(args),
    )  # fmt: skip


def read(args: EngineArgs, path: Path) -> dict[str, Any]:
    """`read_config` of a local model, with `model_impl` added, and `grids.KEY` or `grids.NAMES` if 4-bit weights keep their
    groups. CheckpointError or UnsupportedModelError, naming the key. ConfigError where its files are not of the format that
    `load_format` names."""
    found = "gguf" if gguf.is_gguf(path) else "mistral" if is_native(path) else "safetensors"
    if native(args) and found != "mistral":
        raise ConfigError(f"config_format, load_format: mistral, but {path} is {found}; leave them at auto")
    if args.load_format not in ("auto", "dummy", found) and "gguf" in (found, args.load_format):
        raise ConfigError(f"load_format: {args.load_format}, but {path} is {found}; leave it at auto")
    if args.hf_config_path is not None and found == "gguf":
        raise ConfigError("hf_config_path: a GGUF file holds its configuration itself; omit it")
    if args.model_impl == "transformers" and found != "safetensors":
        raise ConfigError(f"model_impl: transformers reads safetensors, and {path} is {found}; leave it at auto")
    config = read_config(
        path,
        args.hf_overrides,
        formats.check,
        windows=_windows if args.disable_sliding_window else None,
        tail=args.tail,
        described_in=args.hf_config_path,
    )
    blind = {"language_model_only": True} if args.language_model_only else {}
    images = {"mm_processor_kwargs": args.mm_processor_kwargs} if args.mm_processor_kwargs else {}
    dense = args.load_format != "dummy" and "quantization_config" not in config
    kept = _find_grids(path, config, args.quantization) if dense and args.quantization in grids.METHODS else {}
    return {**config, "model_impl": args.model_impl, **blind, **images, **kept}


def _find_grids(path: Path, config: Mapping[str, Any], method: str | None) -> dict[str, Any]:
    weights = open_weights(path)
    if grid := grids.find_group(weights):
        return {grids.KEY: grid}
    mixes = method is not None and METHODS[method].mixes and int(config.get("hidden_size") or NARROW) < NARROW
    return {grids.NAMES: names} if mixes and (names := grids.find_tensors(weights)) else {}


def resolve_kv_cache_dtype(args: EngineArgs, config: Mapping[str, Any], spec: ModelSpec) -> EngineArgs:
    """The arguments with kv_cache_dtype auto resolved, where the checkpoint names a type. ConfigError names an unknown layer
    of kv_cache_dtype_skip_layers."""
    beyond = [s for s in args.kv_cache_dtype_skip_layers if s.isdecimal() and int(s) >= len(spec.layers)]
    if beyond:
        raise ConfigError(f"kv_cache_dtype_skip_layers: {beyond[0]}: the model's layers are 0 to {len(spec.layers) - 1}")
    held = formats.of_checkpoint(config)
    dtype = held.cache() if held is not None and args.kv_cache_dtype == "auto" and spec.causal else ""
    return msgspec.structs.replace(args, kv_cache_dtype=dtype) if dtype else args


def _windows(config: Mapping[str, Any]) -> list[int]:
    from thalweg.models import registry  # servers start without it

    return registry.windows(config)
