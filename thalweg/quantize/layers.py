"""A model run layer by layer over calibration text: one layer's weights at a time, and the hidden states of every sample.

The model is the engine's (`models.build`) on the platform that defines every op. A kernel for its products also gathers
statistics of their inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.hal import discovery, ops
from thalweg.hal.comm import Mesh
from thalweg.hal.op import Binder, Kernel
from thalweg.hal.platform import Place
from thalweg.hal.step import SamplingArrays, StepBatch
from thalweg.hal.weights import DENSE, QTensor
from thalweg.models.build import build
from thalweg.models.flow import Flow
from thalweg.models.weights import ParamSpec, Source, walk

DEFINITION = "reference"
"""The platform with the defining kernel of every op."""
BLOCK = 16
"""Tokens of a block of the KV cache."""
Keys = tuple[Any, ...]


@dataclass(slots=True)
class InputStats:
    """Of the inputs of one product, over all samples."""

    hessian: Tensor
    """float32 [in, in]: the sum of x x^T."""
    magnitude: Tensor
    """float32 [in]: the sum of |x|."""
    rows: int = 0

    def rescale(self, by: Tensor) -> None:
        """Statistics of the inputs divided by `by`, [in]."""
        self.hessian = self.hessian / by / by[:, None]
        self.magnitude = self.magnitude / by


class Layers:
    """samples: token ids, [tokens] each. Hidden states begin as embeddings, and go a layer further with `advance`."""

    def __init__(self, config: Mapping[str, Any], samples: Sequence[np.ndarray]) -> None:
        self._device = discovery.load(DEFINITION).open(Place())
        self._seen: dict[int, InputStats] | None = None
        self._length = max(map(len, samples))
        self.model = build(
            config, binder=Binder((Kernel("linear", "gathers", self._linear),)), attention=self._device.attention,
            mesh=Mesh(self._device.comm), dtype="float32", max_len=self._length, block_tokens=BLOCK,
        )  # fmt: skip
        self._batches = [self._batch(s) for s in samples]
        self._flowing: list[tuple[Tensor, Tensor | None]] = []
        self._flows: list[Flow] = []
        self._tables: Mapping[int, Any] = {i: s.make() for i, s in self.model.specs["rope"].items()}

    def begin(self, weights: Mapping[str, Tensor]) -> None:
        """Embed the samples. weights: those outside layers, by the names that layers know them by."""
        params = {
            k: build_params(s, weights) for k, s in self.model.specs.items() if k not in ("rope", "layers", "head", "norm")
        }
        none: list[Any] = [None] * len(self.model.layouts)
        with torch.inference_mode():
            begun = [self.model.prepare_inputs(params, batch, none, self._tables) for batch in self._batches]
        self._flowing, self._flows = [(x, None) for x, _ in begun], [flow for _, flow in begun]

    def gather(self, layer: int, weights: Mapping[str, Tensor]) -> dict[Keys, InputStats]:
        """Statistics of the inputs of every product of this layer, by the keys of its weight. Hidden states are unchanged."""
        params = build_params(self.model.specs["layers"][layer], weights)
        self._seen = {}
        self._run(layer, params)
        seen, self._seen = self._seen, None
        return {keys: seen[t.data_ptr()] for keys, t in walk(params) if isinstance(t, Tensor) and t.data_ptr() in seen}

    def advance(self, layer: int, weights: Mapping[str, Tensor]) -> None:
        self._flowing = self._run(layer, build_params(self.model.specs["layers"][layer], weights))

    def _run(self, layer: int, params: Mapping[str, Any]) -> list[tuple[Tensor, Tensor | None]]:
        result, block = [], self.model.blocks[layer]
        blocks = -(-self._length // BLOCK) + 2
        with torch.inference_mode():
            for flow, (x, residual) in zip(self._flows, self._flowing, strict=True):
                for at in block.places:  # a layer that reads another's cache stores the contents of that cache
                    layout = self.model.layouts[at.layer]
                    parts = layout if isinstance(layout, tuple) else (layout,)
                    cache = tuple(self._device.alloc_kv(part, blocks) for part in parts)
                    flow.caches[at.layer] = cache if isinstance(layout, tuple) else cache[0]
                result.append(block(params, x, residual, flow))
                for at in block.places:
                    flow.caches[at.layer] = None
        return result

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, **static: Any) -> Tensor:
        if self._seen is not None:
            rows = x.reshape(-1, x.shape[-1])
            held = self._seen.get(weight.data_ptr())
            if held is None:
                width = rows.shape[1]
                held = self._seen[weight.data_ptr()] = InputStats(torch.zeros(width, width), torch.zeros(width))
            held.hessian += rows.T @ rows
            held.magnitude += rows.abs().sum(0)
            held.rows += len(rows)
        result: Tensor = ops.linear(x, weight, bias, **static)
        return result

    def _batch(self, tokens: np.ndarray) -> StepBatch:
        """One sequence, whole."""
        n = len(tokens)
        blocks = np.arange(1, -(-n // BLOCK) + 1, dtype=np.int32)[None]
        tables = tuple(np.array([[1, 2]], np.int32) if g.kind == "state" else blocks for g in self.model.groups)
        one = np.ones(1, np.int32)
        result = StepBatch(
            tokens=tokens.astype(np.int32), token_seq=np.zeros(n, np.int32), positions=np.arange(n, dtype=np.int32), slots=one,
            context=one * 0, query=one * n, last_row=one * (n - 1), emit=np.zeros(1, bool), block_tables=tables,
            sampling=SamplingArrays.greedy(1),
        )  # fmt: skip
        result.check()
        result.metadata = self.model.metadata(result, None)
        return result.map(torch.as_tensor)


def build_params(specs: Mapping[Any, Any], weights: Mapping[str, Tensor]) -> dict[Any, Any]:
    """Parameters of these specs. weights: tensors of the checkpoint in float32, by the names that layers know them by."""
    result: dict[Any, Any] = {}
    for key, spec in specs.items():
        result[key] = _parameter(spec, weights) if isinstance(spec, ParamSpec) else build_params(spec, weights)
    return result


def _rows(source: Source, weights: Mapping[str, Tensor]) -> Tensor:
    if source.within is not None and source.name not in weights:
        found: Tensor = source.within.take(weights[source.within.name], source.shape[0])
        return found
    return weights[source.name][source.first : source.first + source.shape[0]]


def _parameter(spec: ParamSpec, weights: Mapping[str, Tensor]) -> Any:
    whole = torch.cat([_rows(s, weights) for s in spec.sources])
    if spec.pack is None:
        return whole
    return spec.pack(QTensor(DENSE, (whole.shape[0], whole.shape[1]), {"weight": whole}, spec.matrices))
