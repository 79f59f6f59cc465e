"""bitsandbytes, as transformers saves it.

4 bits: `weight` holds two codes to a byte, the first in the upper half, of the flattened matrix. Codes are indices into a
16-entry codebook (nf4, fp4). Every `blocksize` codes share an absolute maximum (`absmax`). Blocks may cross rows. With double
quantisation the maximum is itself a codebook index, times a maximum of 256 maxima (`nested_*`), plus an offset.
8 bits: `weight` int8 [out, in], weight = code * `SCB` / 127. LLM.int8() also rounds inputs, but for outliers above a threshold.
Here inputs keep their dtype, so there are no outliers to treat.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import gcd
from typing import TYPE_CHECKING, Any

from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.hal.weights import QTensor, WeightFormat
from thalweg.quantization.format import Format, Get, WeightPart
from thalweg.quantization.formats.patterns import contains
from thalweg.quantization.formats.settings import MOST, names

if TYPE_CHECKING:
    from torch import Tensor

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Quantiles of the normal distribution (QLoRA, arXiv:2305.14314, appendix E)."""
_E2M1 = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)
"""Magnitudes of bitsandbytes' own 4-bit float, by code. The largest is 12."""
FP4 = tuple(sign * x / 12 for sign in (1, -1) for x in _E2M1)
TABLES = {"nf4": NF4, "fp4": FP4}
BLOCK, NESTED = 64, 256
LEAST = 8
"""Fewest inputs that may share a scale: below that scales would outweigh codes."""
_STATE = "weight.quant_state.bitsandbytes__"
_LEVELS_ERROR = 1e-6
_STORAGE = (1, 2, 4)
"""Bytes of the types in which codes may be kept (`bnb_4bit_quant_storage`)."""


class BitsAndBytes(Format):
    name = "bitsandbytes"
    marks = ("weight.absmax", "SCB")

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        four, eight = (bool(description.get(f"load_in_{n}bit") or description.get(f"_load_in_{n}bit")) for n in (4, 8))
        if four == eight:
            raise UnsupportedModelError("quantization_config: one of load_in_4bit and load_in_8bit must be true")
        kind = str(description.get("bnb_4bit_quant_type", "fp4"))
        if four and kind not in TABLES:
            raise UnsupportedModelError(
                f"quantization_config: bnb_4bit_quant_type: this version reads {', '.join(TABLES)}, not {kind!r:.40}"
            )
        self._kind = kind if four else ""
        self._dense = names(description, "llm_int8_skip_modules", default=("lm_head",))
        self._settings: dict[str, Mapping[str, Any]] = {}

    def scheme(self, layer: str) -> WeightFormat | None:
        if contains(layer, self._dense):
            return None
        if not self._kind:
            return WeightFormat("int", 8)
        kind, settings = self._state(layer)
        block = int(settings.get("blocksize", BLOCK))
        inputs = settings["shape"][1] if "shape" in settings else block
        group = gcd(inputs, block)
        if group < LEAST:
            raise UnsupportedModelError(
                f"{layer}: blocks of {block} run over rows of {inputs} inputs, so that {group} inputs share a scale: this "
                f"version needs at least {LEAST}; use the model's bfloat16 checkpoint, and --quantization int4"
            )
        return WeightFormat("table", 4, group, levels=TABLES[kind])

    def _state(self, layer: str) -> tuple[str, Mapping[str, Any]]:
        """The codebook's name, and the file's settings of this layer's blocks. CheckpointError for an invalid description."""
        kind = next((k for k in TABLES if self.entry(f"{layer}.{_STATE}{k}") is not None), self._kind)
        if layer not in self._settings:
            raw = self.value(f"{layer}.{_STATE}{kind}")
            try:
                settings = {} if raw is None else json.loads(raw.tobytes())
                sizes = (
                    [*settings["shape"], settings["blocksize"], settings.get("nested_blocksize", NESTED)]
                    if settings
                    else [1] * 4
                )
                known = len(sizes) == 4 and all(isinstance(n, int) and 0 < n < MOST for n in sizes)
                float(settings.get("nested_offset", 0))
            except (ValueError, TypeError, KeyError) as e:
                raise CheckpointError(f"{layer}.{_STATE}{kind}: not a description of blocks: {e}") from e
            if not known or settings.get("quant_type", kind) != kind:
                raise CheckpointError(f"{layer}.{_STATE}{kind}: does not describe a matrix in blocks of {kind}")
            self._settings[layer] = settings
        return kind, self._settings[layer]

    def parts(self, layer: str, shape: tuple[int, int]) -> Mapping[str, WeightPart]:
        outputs, inputs = shape
        if not self._kind:
            return {
                "weight": WeightPart((shape,)),
                "SCB": WeightPart(((outputs,),)),
                "weight_format": WeightPart(((), (1,)), optional=True),
            }
        kind, settings = self._state(layer)
        blocks = -(-outputs * inputs // int(settings.get("blocksize", BLOCK)))
        state = self.entry(f"{layer}.{_STATE}{kind}")
        result = {
            "weight": WeightPart(tuple((-(-outputs * inputs // (2 * n)), 1) for n in _STORAGE)),
            "weight.absmax": WeightPart(((blocks,),)),
            "weight.quant_map": WeightPart(((len(TABLES[kind]),),)),
            f"{_STATE}{kind}": WeightPart((state[1] if state else (1,),)),
        }
        if "nested_offset" in settings:
            nested = -(-blocks // int(settings.get("nested_blocksize", NESTED)))
            result |= {"weight.nested_absmax": WeightPart(((nested,),)), "weight.nested_quant_map": WeightPart(((256,),))}
        return result

    def read(self, layer: str, shape: tuple[int, int], get: Get) -> QTensor:
        import torch

        form = self.scheme(layer)
        assert form is not None, layer
        if not self._kind:
            if self.entry(f"{layer}.weight_format") is not None and int(get("weight_format").reshape(-1)[0]):
                raise CheckpointError(f"{layer}.weight_format: this version reads weights by rows (0)")
            return QTensor(form, shape, {"codes": get("weight"), "scales": get("SCB").float()[:, None] / 127})
        outputs, inputs = shape
        _, settings = self._state(layer)
        if tuple(settings["shape"]) != shape:
            raise CheckpointError(
                f"{layer}: its blocks are those of a matrix {settings['shape']}, config.json makes it {list(shape)}"
            )
        levels = torch.tensor(form.levels)
        if not torch.allclose(get("weight.quant_map").float(), levels, atol=_LEVELS_ERROR):
            raise CheckpointError(f"{layer}.weight.quant_map: not the table of {self._kind}, and no other is read")
        pairs = get("weight").reshape(-1).view(torch.uint8)
        codes = torch.stack([pairs >> 4, pairs & 15], -1).reshape(-1)[: outputs * inputs].reshape(shape)
        first = torch.arange(outputs * (inputs // form.group)) * form.group
        scales = _maxima(get, settings)[first // int(settings["blocksize"])].reshape(outputs, -1)
        return QTensor(form, shape, {"codes": codes, "scales": scales, "levels": levels[None]})


def _maxima(get: Get, settings: Mapping[str, Any]) -> Tensor:
    """float32 [blocks]."""
    import torch

    absmax = get("weight.absmax")
    if "nested_offset" not in settings:
        return absmax.float()
    size = int(settings.get("nested_blocksize", NESTED))
    outer = get("weight.nested_absmax").float().repeat_interleave(size)[: len(absmax)]
    inner = get("weight.nested_quant_map").float()[absmax.to(torch.int64)]
    return inner * outer + torch.tensor(float(settings["nested_offset"]))
