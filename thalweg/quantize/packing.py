"""Codes as files of compressed-tensors keep them (its version 0.20), or those of AWQ and GPTQ: the tensors of one layer, by
suffix."""

from __future__ import annotations

import torch
from torch import Tensor

from thalweg.hal.ops.quantise import E2M1
from thalweg.quantization.formats.words import NIBBLES
from thalweg.quantize.formats import WORDS, QuantizeFormat
from thalweg.quantize.grids import FP8, RoundedWeight

WORD = 32


def tensors(form: QuantizeFormat, result: RoundedWeight) -> dict[str, Tensor]:
    out, fan_in = result.codes.shape
    if form.layout in WORDS:
        return _by_outputs(form, result)
    if form.layout == "int-quantized":
        return {"weight": result.codes.to(torch.int8), "weight_scale": result.held}
    if form.layout == "float-quantized":
        return {"weight": result.codes.to(FP8), "weight_scale": result.held}
    if form.kind == "float":
        packed = {"weight_packed": _pairs(result.codes), "weight_scale": result.held}
        return packed | ({"weight_global_scale": result.outer.reshape(1).float()} if form.scales == "float8_e4m3fn" else {})
    shift = 0 if result.zeros is not None else 1 << (form.bits - 1)
    packed = {
        "weight_packed": words(result.codes + shift, form.bits),
        "weight_scale": result.held,
        "weight_shape": torch.tensor([out, fan_in]),
    }
    if result.zeros is not None:
        packed["weight_zero_point"] = words(result.zeros.T, form.bits).T.contiguous()
    return packed


def _by_outputs(form: QuantizeFormat, result: RoundedWeight) -> dict[str, Tensor]:
    """A word of AWQ holds eight outputs of one input, a word of GPTQ several inputs of one output. Both have zero points, which
    are in the middle for symmetric weights: readers of AWQ support no other files. GPTQ stores each zero point minus one,
    except in the files of its version 2, because zero points may be 0."""
    middle = 1 << (form.bits - 1)
    codes = result.codes if result.zeros is not None else result.codes + middle
    zeros = torch.full_like(result.held, middle, dtype=torch.float32) if result.zeros is None else result.zeros
    scales = result.held.T.contiguous()
    if form.layout == "awq":
        return {"qweight": _interleave(codes.T), "qzeros": _interleave(zeros.T), "scales": scales}
    groups = torch.arange(codes.shape[1], dtype=torch.int32) // (form.group or codes.shape[1])
    return {
        "qweight": words(codes, form.bits).T.contiguous(), "qzeros": words(zeros.T - int(form.symmetric), form.bits),
        "scales": scales, "g_idx": groups,
    }  # fmt: skip


def _interleave(codes: Tensor) -> Tensor:
    """[rows, outputs] -> int32 [rows, outputs / 8]."""
    places = torch.tensor(NIBBLES).argsort()
    return words(codes.reshape(len(codes), -1, len(places))[..., places].flatten(1), 4)


def words(codes: Tensor, bits: int) -> Tensor:
    """Whole numbers [rows, n] -> int32 [rows, n * bits / 32], packed from the lowest bit of the first word on. The last word is
    padded with zeros."""
    per = WORD // bits
    rows, n = codes.shape
    wide = torch.zeros(rows, -(-n // per) * per, dtype=torch.int64)
    wide[:, :n] = codes.to(torch.int64)
    shifts = torch.arange(per, dtype=torch.int64) * bits
    result = (wide.reshape(rows, -1, per) << shifts).sum(-1)
    return torch.where(result >= 1 << (WORD - 1), result - (1 << WORD), result).to(torch.int32)


def _pairs(values: Tensor) -> Tensor:
    """4-bit floats [rows, n] -> uint8 [rows, n / 2], the first of two in the lower half."""
    level = torch.bucketize(values.abs(), torch.tensor(E2M1))
    bits = (level + 8 * torch.signbit(values)).to(torch.uint8)
    return bits[:, ::2] | (bits[:, 1::2] << 4)
