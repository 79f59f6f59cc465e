"""Formats of `thalweg quantize`, under their names in the compressed-tensors library: in its layouts, or those of AWQ and GPTQ.
Loads no tensor framework."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from thalweg.errors import ConfigError

Kind = Literal["int", "float"]


@dataclass(frozen=True, slots=True)
class QuantizeFormat:
    """Storage of the weights of every quantised layer, and the dtype to which their inputs are rounded at inference."""

    layout: str
    """`format` of the library, or "awq" or "gptq"."""
    kind: Kind
    bits: int
    group: int = 0
    """Inputs that share a scale: 0 = a whole row."""
    symmetric: bool = True
    block: int = 0
    """Outputs that share the scales of their groups; 0 = each has its own."""
    scales: str = ""
    """Type of scales, where it is not the model's: "float8_e4m3fn" under one of the tensor (NVFP4), "e8m0" (MXFP4)."""
    inputs: str = ""
    """Type that a row of the input is rounded to, by its largest, or by the largest of each group."""

    @property
    def has_groups(self) -> bool:
        """May --group-size change the group?"""
        return self.layout in ("pack-quantized", *WORDS)

    def weights(self, actorder: str | None = None) -> dict[str, Any]:
        """`config_groups.*.weights` of the library."""
        settings: dict[str, Any] = {"num_bits": self.bits, "type": self.kind, "symmetric": self.symmetric, "dynamic": False}
        if self.block:
            return settings | {"strategy": "block", "block_structure": [self.block, self.group]}
        if self.scales == "float8_e4m3fn":
            return settings | {"strategy": "tensor_group", "group_size": self.group, "scale_dtype": "torch.float8_e4m3fn"}
        if self.scales == "e8m0":
            return settings | {"strategy": "group", "group_size": self.group, "scale_dtype": "torch.uint8"}
        if self.group:
            return settings | {"strategy": "group", "group_size": self.group} | ({"actorder": actorder} if actorder else {})
        return settings | {"strategy": "channel"} | ({"actorder": actorder} if actorder else {})

    def activations(self) -> dict[str, Any] | None:
        if not self.inputs:
            return None
        kind = "int" if self.inputs == "int8" else "float"
        settings = {"num_bits": 8, "type": kind, "symmetric": True, "dynamic": True}
        return settings | ({"strategy": "group", "group_size": self.group} if self.block else {"strategy": "token"})


WORDS = {"awq": ("W4A16", "W4A16_ASYM"), "gptq": ("W4A16", "W4A16_ASYM", "W8A16")}
"""Other layouts, which pack several outputs or inputs into a word -> the formats that they support."""
LAYOUTS = ("compressed-tensors", *WORDS)
FORMATS: Mapping[str, QuantizeFormat] = {
    "W4A16": QuantizeFormat("pack-quantized", "int", 4, 128),
    "W4A16_ASYM": QuantizeFormat("pack-quantized", "int", 4, 128, symmetric=False),
    "W8A16": QuantizeFormat("pack-quantized", "int", 8, 128),
    "W8A8": QuantizeFormat("int-quantized", "int", 8, inputs="int8"),
    "FP8_DYNAMIC": QuantizeFormat("float-quantized", "float", 8, inputs="float8_e4m3fn"),
    "FP8_BLOCK": QuantizeFormat("float-quantized", "float", 8, 128, block=128, inputs="float8_e4m3fn"),
    "NVFP4A16": QuantizeFormat("nvfp4-pack-quantized", "float", 4, 16, scales="float8_e4m3fn"),
    "MXFP4A16": QuantizeFormat("mxfp4-pack-quantized", "float", 4, 32, scales="e8m0"),
}
HEAD = "lm_head"
GROUPS = (0, 32, 64, 128)
METHODS = ("rtn", "awq", "gptq")
ORDERS = ("none", "static")
"""Orders of inputs in GPTQ: the file's order, or decreasing importance. Both keep the groups."""


def choose_format(name: str, group: int | None, layout: str = LAYOUTS[0]) -> QuantizeFormat:
    """ConfigError for an unknown name, group or layout."""
    spelled = {n.lower().replace("_", "-"): n for n in FORMATS}.get(name.lower().replace("_", "-"))
    if spelled is None:
        raise ConfigError(f"--format: unknown format {name!r}; supported: {', '.join(FORMATS)}")
    result = FORMATS[spelled]
    if layout not in LAYOUTS:
        raise ConfigError(f"--layout: unknown layout {layout!r}; supported: {', '.join(LAYOUTS)}")
    if layout in WORDS:
        if spelled not in WORDS[layout]:
            raise ConfigError(f"--layout: {layout} holds {', '.join(WORDS[layout])}, not {spelled}; remove the flag")
        result = replace(result, layout=layout)
    if group is None:
        return result
    if not result.has_groups:
        raise ConfigError(f"--group-size: the groups of {spelled} are fixed; remove the flag")
    if group not in GROUPS:
        raise ConfigError(f"--group-size: must be one of {', '.join(map(str, GROUPS))} (0: a scale per output), not {group}")
    return replace(result, group=group)


def build_quantization_config(form: QuantizeFormat, ignore: Sequence[str], actorder: str | None) -> dict[str, Any]:
    """`quantization_config` of the written checkpoint."""
    if form.layout == "awq":
        return {
            "quant_method": "awq", "bits": form.bits, "group_size": form.group or -1, "zero_point": True, "version": "gemm",
            "modules_to_not_convert": list(ignore),
        }  # fmt: skip
    if form.layout == "gptq":
        dense: dict[str, Any] = {f"-:^{re.escape(layer)}$": {} for layer in ignore if layer != HEAD}
        return {
            "quant_method": "gptq", "bits": form.bits, "group_size": form.group or -1, "sym": form.symmetric, "desc_act": False,
            "checkpoint_format": "gptq" if form.symmetric else "gptq_v2", "lm_head": HEAD not in ignore,
            **({"dynamic": dense} if dense else {}),
        }  # fmt: skip
    group = {
        "targets": ["Linear"],
        "weights": form.weights(actorder),
        "input_activations": form.activations(),
        "output_activations": None,
        "format": form.layout,
    }
    return {
        "quant_method": "compressed-tensors", "format": form.layout, "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": list(ignore), "kv_cache_scheme": None,
    }  # fmt: skip
