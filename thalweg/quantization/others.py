"""Quantisation names without a reader here: rejected formats, and flags and kernels of other engines that are no checkpoint
format. Each with an alternative."""

from __future__ import annotations

from collections.abc import Mapping

_DENSE = "use the model's bfloat16 or float16 checkpoint, with --quantization int4 or int8 to round it while it loads"
_REQUANTISE = "or quantise that with llm-compressor, AutoRound or GPTQModel"
_CODEBOOKS = f"its codebooks are of one library's kernels; {_DENSE}, {_REQUANTISE}"
_LEAVE = "it is a kernel's name and no format: config.json keeps the quant_method of the library that wrote the weights"

FORMATS: Mapping[str, str] = {
    "aqlm": _CODEBOOKS,
    "bitblas": f"packed for one kernel; save it with GPTQModel as gptq, or {_DENSE}",
    "deepspeedfp": f"a format of one engine; {_DENSE}",
    "eetq": f"packed for one kernel; {_DENSE}",
    "exl2": f"a trellis of one engine's kernels; convert the model to GGUF or GPTQ, or {_DENSE}",
    "exl3": f"a trellis of one engine's kernels; convert the model to GGUF or GPTQ, or {_DENSE}",
    "fp_quant": f"it rotates inputs in every layer; {_DENSE}, {_REQUANTISE}",
    "higgs": _CODEBOOKS,
    "marlin": "packed for one kernel; take the GPTQ checkpoint that it was made of, or save it with GPTQModel as gptq",
    "gptq_marlin_24": f"2:4 sparsity, packed for one kernel; take the checkpoint that it was made of, or {_DENSE}",
    "marlin_24": f"2:4 sparsity, packed for one kernel; take the checkpoint that it was made of, or {_DENSE}",
    "sparseml": f"2:4 sparsity; save it dense (llm-compressor: save_compressed=False), or {_DENSE}",
    "qqq": f"packed for one kernel; {_DENSE}, {_REQUANTISE}",
    "quanto": f"kept as the pickles of a library; {_DENSE}, or save it with torchao as safetensors",
    "quip": _CODEBOOKS,
    "quip_sharp": _CODEBOOKS,
    "sinq": f"its scales run along two dimensions; {_DENSE}, {_REQUANTISE}",
    "spqr": f"its outliers lie apart in a sparse matrix; {_DENSE}, {_REQUANTISE}",
    "squeezellm": _CODEBOOKS,
    "vptq": _CODEBOOKS,
}
"""`quant_method` -> why it is not read, and an alternative."""
FLAGS: Mapping[str, str] = {
    "awq_marlin": f'{_LEAVE} ("awq")',
    "gptq_marlin": f'{_LEAVE} ("gptq")',
    "gptq_bitblas": f'{_LEAVE} ("gptq")',
    "moe_wna16": f'{_LEAVE} ("awq" or "gptq")',
    "humming": _LEAVE,
    "petit_nvfp4": _LEAVE,
    "ipex": f'{_LEAVE} ("awq" or "gptq")',
    "experts_int8": "another engine's flag for rounding while loading: take it out of config.json and set --quantization int8",
    "rtn": "another engine's flag for rounding while loading: take it out of config.json and set --quantization int8 or int4",
}
"""Names that other engines' users pass to `--quantization`, and that no library writes into a checkpoint."""


def answer(method: str) -> str:
    """The alternative for a checkpoint with this method. "": the method is unknown."""
    return {**FORMATS, **FLAGS}.get(method.lower(), "")
