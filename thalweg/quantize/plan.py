"""The plan of `thalweg quantize`: tensors to quantise, tensors to copy, and reasons to reject. Loads no tensor framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thalweg.checkpoint import gguf
from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.native import is_native
from thalweg.checkpoint.pieces import SlicedCheckpoint, experts_apart
from thalweg.checkpoint.safetensors import Checkpoint, open_checkpoint
from thalweg.errors import ConfigError
from thalweg.models import registry
from thalweg.models.spec import ModelSpec
from thalweg.models.weights import walk
from thalweg.quantization import registry as read
from thalweg.quantization.formats.patterns import matches
from thalweg.quantize.formats import WORDS, QuantizeFormat

FLOATS = ("float32", "float16", "bfloat16")
QUANTISED = ("linear", "experts", "head")
"""Roles of weights that formats are for."""


@dataclass(frozen=True, slots=True)
class QuantizePlan:
    config: Mapping[str, Any]
    spec: ModelSpec
    checkpoint: Checkpoint | SlicedCheckpoint
    known: Mapping[str, str]
    """Names that layers use -> names of the file."""
    roles: Mapping[str, str]
    """Tensors to quantise, by the name that layers use: linear, experts or head."""
    ignore: tuple[str, ...]
    """Layers of the file that stay as they are and could be taken for quantised ones."""


def build_plan(path: Path, form: QuantizeFormat, ignore: Sequence[str], calibrated: bool) -> QuantizePlan:
    """ConfigError lists why the model or the format is unsupported."""
    if gguf.is_gguf(path):
        raise ConfigError(f"MODEL: {path} is a GGUF file; give a directory of safetensors files with dense weights")
    if is_native(path):
        raise ConfigError(f"MODEL: {path.parent} is in Mistral's own format; give the same model in that of transformers")
    config = {**read_config(path, None, read.check), "model_impl": "thalweg"}  # layers must be a family's to be read
    held = read.of_checkpoint(config)
    if held is not None:
        raise ConfigError(f"MODEL: {path} is quantised already ({held.name}); give the checkpoint that it was made from")
    config, spec = registry.declare(config, path)
    checkpoint = experts_apart(open_checkpoint(path))
    if calibrated and spec.source_encoder is not None:
        raise ConfigError("--method: models with an encoder are not calibrated; use --method rtn")
    if calibrated and (spec.pooling is not None or not spec.causal):
        raise ConfigError("--method: only models that generate text are calibrated; use --method rtn")
    known = {k: name for name in checkpoint.names if (k := spec.rename(name)) is not None}
    _laid_out(spec, known, calibrated)
    roles = {s.name: w.role for _, w in walk(spec.weights()) for s in w.sources}
    chosen, problems = {}, []
    for name, role in roles.items():
        if role not in QUANTISED or name not in known or matches(known[name].removesuffix(".weight"), ignore):
            continue
        dtype, shape = checkpoint.entry(known[name])
        if dtype not in FLOATS:
            problems.append(f"MODEL: {known[name]} is stored as {dtype}; this version quantises {', '.join(FLOATS)}")
        elif form.group and not form.block and shape[1] % form.group:
            problems.append(_divides(known[name], shape[1], form))
        elif form.layout in WORDS and any(n % (32 // form.bits) for n in shape):
            problems.append(
                f"--layout: {known[name].removesuffix('.weight')} is {list(shape)}, and {form.layout} keeps {32 // form.bits} "
                "codes to a word: leave it dense (--ignore), or leave out --layout"
            )
        else:
            chosen[name] = role
    if not chosen and not problems:
        problems.append("--ignore: leaves nothing to quantise")
    if problems:
        more = [f"and {len(problems) - 3} more layers like these"] if len(problems) > 3 else []
        raise ConfigError(*problems[:3], *more)
    dense = [n for n in checkpoint.names if n.endswith(".weight") and len(checkpoint.entry(n)[1]) == 2]
    quantised = {known[n] for n in chosen}
    tables = {known[n] for n, role in roles.items() if role == "embedding" and n in known}
    stay = {n.removesuffix(".weight") for n in dense if n not in quantised and n not in tables}
    head = set() if spec.head + ".weight" in chosen else {spec.head}
    return QuantizePlan(config, spec, checkpoint, known, chosen, tuple(sorted(stay | head)))


def _laid_out(spec: ModelSpec, known: Mapping[str, str], calibrated: bool) -> None:
    """ConfigError where matrices lie in the files as this version does not write them."""
    for s in (s for _, w in walk(spec.weights()) for s in w.sources):
        if s.within is not None and not s.within.run and s.name not in known:
            raise ConfigError(
                f"MODEL: {s.within.name} holds several matrices, or one on its side, which this version does not quantise "
                "ahead; serve it with --quantization, which rounds while it loads"
            )
    if calibrated and any(getattr(mixer, "grouped", False) for _, mixer in spec.mixers):
        raise ConfigError("--method: q, k and v of this model alternate in one tensor; use --method rtn")


def _divides(name: str, inputs: int, form: QuantizeFormat) -> str:
    layer = name.removesuffix(".weight")
    other = f"another --group-size ({', '.join(str(g) for g in (64, 32) if inputs % g == 0) or '0'})" if form.has_groups else ""
    return (
        f"--format: {layer} has {inputs} inputs, which groups of {form.group} do not divide: "
        f"{other + ', or ' if other else ''}leave it dense (--ignore lm_head {layer})"
    )
