"""`thalweg quantize` as a whole: layer by layer from a dense checkpoint to a quantised one, with the loss of each layer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from thalweg.checkpoint.tokenizer import load_tokenizer
from thalweg.errors import ConfigError
from thalweg.host import heap
from thalweg.models.files import as_tensor
from thalweg.models.weights import HEADS, Source, walk
from thalweg.quantize import awq, gptq
from thalweg.quantize.formats import QuantizeFormat, build_quantization_config
from thalweg.quantize.grids import Grid, RoundedWeight, nearest
from thalweg.quantize.layers import InputStats, Keys, Layers
from thalweg.quantize.packing import tensors
from thalweg.quantize.plan import QuantizePlan, build_plan
from thalweg.quantize.writer import Writer

REPORT = "quantize_report.json"
LEAST = 32
"""Tokens of the shortest calibration text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """As the flags of the command say."""

    form: QuantizeFormat
    name: str
    method: str = "rtn"
    ignore: Sequence[str] = ("lm_head",)
    calibration: Path | None = None
    samples: int = 128
    length: int = 512
    order: str = "static"
    damp: float = 0.01
    shard_bytes: int = 4 << 30


@dataclass(frozen=True, slots=True)
class LayerLoss:
    """Loss of one layer relative to its dense weights: sqrt of squared error over squared value."""

    layer: str
    method: str
    weights: float
    outputs: float | None
    """On the calibration inputs. None: there was no calibration text."""


@dataclass(slots=True)
class QuantizeReport:
    format: str
    method: str
    layers: list[LayerLoss] = field(default_factory=list)
    bytes: int = 0
    """Of the tensors that were written."""
    tokens: int = 0
    """Of calibration text."""


def quantize(path: Path, out: Path, options: Options, progress: bool = True) -> QuantizeReport:
    """Writes `out`. ConfigError for unsupported options, before any weight is read."""
    if options.method != "rtn" and options.calibration is None:
        raise ConfigError(
            f"--calibration: --method {options.method} needs text: name a file with texts like those the model will serve"
        )
    plan = build_plan(path, options.form, options.ignore, options.calibration is not None)
    samples = _samples(path, options) if options.calibration is not None else []
    writer = Writer(out, options.shard_bytes)
    try:
        with torch.inference_mode():
            report = _Run(plan, options, writer, samples).all(progress)
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        order = options.order if options.method == "gptq" and options.order != "none" and options.form.kind == "int" else None
        config["quantization_config"] = build_quantization_config(options.form, plan.ignore, order)
        writer.finish(config, path, asdict(report), REPORT)
    except BaseException:
        writer.abandon()
        raise
    return report


def _samples(path: Path, options: Options) -> list[np.ndarray]:
    """Equal pieces of the text, spread evenly over it."""
    assert options.calibration is not None
    try:
        text = options.calibration.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"--calibration: {options.calibration} cannot be read as UTF-8 text: {e}") from e
    ids = np.array(load_tokenizer(path).encode(text), np.int32)
    if len(ids) < LEAST:
        raise ConfigError(f"--calibration: {options.calibration} has {len(ids)} tokens; at least {LEAST} are needed")
    length = min(options.length, len(ids))
    count = min(options.samples, len(ids) // length)
    starts = np.linspace(0, len(ids) - length, count).astype(int)
    return [ids[s : s + length] for s in starts]


class _Run:
    def __init__(self, plan: QuantizePlan, options: Options, writer: Writer, samples: list[np.ndarray]) -> None:
        self._plan, self._options, self._writer = plan, options, writer
        self._layers = Layers(plan.config, samples) if samples else None
        self._report = QuantizeReport(options.name, options.method, tokens=sum(map(len, samples)))
        self._stored = {k: getattr(torch, plan.checkpoint.entry(name)[0]) for k, name in plan.known.items()}

    def all(self, progress: bool) -> QuantizeReport:
        tree: Mapping[str, Any] = self._plan.spec.weights()
        inside = [dict.fromkeys(self._holder(s) for _, w in walk(tree["layers"][i]) for s in w.sources) for i in tree["layers"]]
        within = {self._plan.known[n] for names in inside for n in names}
        outside = [n for n in self._plan.checkpoint.names if n not in within]
        back = {name: k for k, name in self._plan.known.items()}
        begins: dict[str, Tensor] = {}
        for name in outside:
            known = back.get(name, "")
            if known in self._plan.roles:
                weight = self._read(known)
                result = nearest(weight, Grid(self._options.form, weight, self._stored[known]))
                self._write(known, result, weight, None)
                if self._plan.roles[known] not in HEADS:  # a projection of embeddings
                    begins[known] = result.values
            else:
                self._writer.add({name: self._raw(name)})
        if self._layers is not None:
            dense = {back[n]: self._read(back[n]) for n in outside if n in back and back[n] not in self._plan.roles}
            self._layers.begin(dense | begins)
        for i in tqdm(tree["layers"], desc="Quantising layers", disable=None if progress else True, leave=False):
            self._layer(i, {n: self._read(n) for n in inside[i]}, tree["layers"][i])
            heap.trim()
        self._report.bytes = self._writer.total
        return self._report

    def _holder(self, source: Source) -> str:
        """The tensor that holds a source, by the name that layers use."""
        return source.name if source.within is None or source.name in self._plan.known else source.within.name

    def _layer(self, i: int, weights: dict[str, Tensor], tree: Mapping[str, Any]) -> None:
        seen: dict[Keys, InputStats] = {} if self._layers is None else self._layers.gather(i, weights)
        options, before = self._options, dict(weights)
        if options.method == "awq":
            for fold in awq.folds(self._plan.spec.layers[i], tree):
                if all(s.name in self._plan.roles for s in fold.sources):
                    awq.apply(fold, weights, seen, self._stored, self._as_held)
        stats = {s.name: seen.get(_keys_of(seen, keys)) for keys, w in walk(tree) for s in w.sources if w.role == "linear"}
        for name in list(weights):
            if name in self._plan.roles:
                result, how = self._round(name, weights[name], stats.get(name))
                self._write(name, result, weights[name], stats.get(name), how)
                weights[name] = result.values
            elif weights[name] is before[name]:
                self._writer.add({self._plan.known[name]: self._raw(self._plan.known[name])})
            else:
                self._writer.add({self._plan.known[name]: weights[name].to(self._stored[name])})
        if self._layers is not None:
            self._layers.advance(i, weights)

    def _round(self, name: str, weight: Tensor, seen: InputStats | None) -> tuple[RoundedWeight, str]:
        """Experts are rounded to nearest whatever the method: no statistics are gathered of the inputs of single experts."""
        options = self._options
        grid = Grid(options.form, weight, self._stored[name])
        if seen is None or options.method == "rtn":
            return nearest(weight, grid), "rtn"
        if options.method == "gptq":
            return gptq.round_weight(weight, grid, seen.hessian, damp=options.damp, order=options.order), "gptq"
        return nearest(weight, grid, seen.hessian.diagonal() / seen.rows), "awq"

    def _as_held(self, name: str, weight: Tensor) -> Tensor:
        return nearest(weight, Grid(self._options.form, weight, self._stored[name])).values

    def _write(self, name: str, result: RoundedWeight, weight: Tensor, seen: InputStats | None, how: str = "rtn") -> None:
        layer = self._plan.known[name].removesuffix(".weight")
        self._writer.add({f"{layer}.{suffix}": t for suffix, t in tensors(self._options.form, result).items()})
        error = result.values - weight
        outputs = None if seen is None else _relative(*(((e @ seen.hessian) * e).sum() for e in (error, weight)))
        lost = LayerLoss(layer, how, _relative(error.square().sum(), weight.square().sum()), outputs)
        self._report.layers.append(lost)

    def _raw(self, name: str) -> Tensor:
        result = as_tensor(self._plan.checkpoint.read(name), self._plan.checkpoint.entry(name)[0])
        self._plan.checkpoint.forget(name)
        return result

    def _read(self, known: str) -> Tensor:
        return self._raw(self._plan.known[known]).float()


def _keys_of(seen: Mapping[Keys, InputStats], keys: Keys) -> Keys:
    """Of the product that a weight is part of: products of one weight may be several."""
    return next((k for k in seen if k[: len(keys)] == keys), keys)


def _relative(lost: Tensor, whole: Tensor) -> float:
    return float((lost.clamp(min=0) / whole.clamp(min=1e-30)).sqrt())


def table(report: QuantizeReport) -> str:
    """As Markdown, and the means."""
    width = max(len(e.layer) for e in report.layers)
    lines = [f"| {'layer':{width}} | method | weights % | outputs % |", f"|-{'-' * width}-|--------|----------:|----------:|"]
    rows = [(e.layer, e.method, e.weights, e.outputs) for e in report.layers]
    known = [e.outputs for e in report.layers if e.outputs is not None]
    weights = sum(e.weights for e in report.layers) / len(rows)
    rows.append(("mean", report.method, weights, sum(known) / len(known) if known else None))
    for layer, how, lost, outputs in rows:
        shown = "" if outputs is None else f"{100 * outputs:.2f}"
        lines.append(f"| {layer:{width}} | {how:6} | {100 * lost:9.2f} | {shown:>9} |")
    return "\n".join(lines)
