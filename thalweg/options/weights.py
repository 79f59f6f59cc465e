"""Options of weights: where they are downloaded, how they are read and rounded."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import msgspec

from thalweg.options.model import ModelOptions
from thalweg.options.option import Option

LOAD_FORMATS = ("auto", "safetensors", "hf", "gguf", "mistral", "dummy", "fastsafetensors", "runai_streamer", "instanttensor")
FASTER_READERS = ("fastsafetensors", "runai_streamer", "instanttensor")
"""Values of `load_format` that name other readers of safetensors files. Files and values are the same, so ours serves."""
_DENSE = "give the safetensors files of the same model (transformers writes them: model.save_pretrained)"
LOAD_REFUSED = {
    "pt": f"pickled files can run code and are never opened; {_DENSE}",
    "npcache": f"it unpickles .bin files, which can run code; {_DENSE}",
    "tensorizer": f"its files are not read; {_DENSE}",
    "sharded_state": f"its files are cut for one number of ranks of another engine; {_DENSE}",
    "runai_streamer_sharded": f"its files are cut for one number of ranks of another engine; {_DENSE}",
    "bitsandbytes": "leave it at auto, which detects the checkpoint's format; to round a dense one use --quantization int4",
}
"""Unsupported values of `load_format` -> the alternative."""
ROUNDINGS = ("int8", "int4", "w8a16", "w4a16", "w4a8", "fp8", "fp8_per_block", "mxfp4", "nvfp4")
"""Values of `quantization` that round dense weights while they are loaded (`quantization.online`)."""
SPELLINGS = {
    "fp8_per_channel": "fp8", "ptpc_fp8": "fp8", "fp8_per_tensor": "fp8", "int8_per_channel_weight_only": "w8a16",
    "nvfp4_per_token": "nvfp4",
}  # fmt: skip
"""The field's names of roundings -> ours. Of one that asks for coarser scales, or for inputs of 4 bits, ours loses less."""
CHECKPOINT_FORMATS = {
    "awq": ("awq",), "awq_marlin": ("awq",), "cpu_awq": ("awq",), "gptq": ("gptq",), "auto_gptq": ("gptq",),
    "gptq_marlin": ("gptq",), "moe_wna16": ("awq", "gptq"), "auto-round": ("auto-round", "inc"), "inc": ("auto-round", "inc"),
    "compressed-tensors": ("compressed-tensors",), "gguf": ("gguf",), "bitsandbytes": ("bitsandbytes",), "hqq": ("hqq",),
    "fp8": ("fp8",), "deepseek_v4_fp8": ("fp8", "deepseek_v4_fp8"), "fbgemm_fp8": ("fbgemm_fp8",), "mxfp8": ("mxfp8",),
    "mxfp4": ("mxfp4",), "gpt_oss_mxfp4": ("mxfp4",), "modelopt": ("modelopt",), "modelopt_fp4": ("modelopt",),
    "modelopt_mxfp8": ("modelopt",), "modelopt_mixed": ("modelopt",), "nvfp4": ("modelopt",), "quark": ("quark",),
    "torchao": ("torchao",), "bitnet": ("bitnet",),
}  # fmt: skip
"""Values of `quantization` that name a checkpoint's format -> names of formats (`quantization.registry`)."""
QUANTIZATIONS = tuple(dict.fromkeys((*ROUNDINGS, *SPELLINGS, *CHECKPOINT_FORMATS)))
_option = partial(Option, group="LoadConfig")


def check_loader(settings: dict[str, Any]) -> Iterator[str]:
    """The keys of model_loader_extra_config."""
    for key, value in settings.items():
        if key == "enable_multithread_load":
            if not isinstance(value, bool):
                yield f"{key} must be true or false, not {value!r:.60}"
        elif key not in ("num_threads", "concurrency"):
            yield f"{key!r:.60} is not known; this version has enable_multithread_load, num_threads, concurrency"
        elif type(value) is not int or not 1 <= value <= 256:
            yield f"{key} must be a number from 1 to 256, not {value!r:.60}"


class WeightOptions(ModelOptions, kw_only=True, frozen=True):
    """How weights are found, read and rounded."""

    download_dir: Annotated[str | None, _option("Where weights are downloaded and cached")] = None
    ignore_patterns: Annotated[list[str], _option(
        "Shell patterns of repository files to skip when downloading; default: second copies of the weights",
    )] = msgspec.field(default_factory=lambda: ["original/*", "consolidated*"])  # fmt: skip
    quantization: Annotated[str | None, _option(
        "Round dense weights at load, or name the format of a quantised checkpoint to have it checked; unset reads the "
        "checkpoint", group="ModelConfig", aliases=("-q",), choices=QUANTIZATIONS,
        note="a quantised checkpoint is detected, and needs no flag",
    )] = None  # fmt: skip
    """ROUNDINGS and SPELLINGS round. CHECKPOINT_FORMATS are checked."""
    load_format: Annotated[
        str, _option("How and in which format weights are read", choices=LOAD_FORMATS, refused=LOAD_REFUSED)
    ] = "auto"
    safetensors_load_strategy: Annotated[str | None, _option(
        "How weight files are read: mapped (lazy), read whole before the first tensor (eager), or ahead in the background "
        "(prefetch)", choices=("lazy", "eager", "prefetch"),
        refused={"torchao": "torchao's checkpoints are known by their config.json; remove the flag"},
    )] = None  # fmt: skip
    safetensors_prefetch_num_threads: Annotated[int, _option("Threads that read ahead", ge=1)] = 8
    safetensors_prefetch_block_size: Annotated[
        int, _option("Bytes of one read of eager and prefetch", kind="human-int", ge=1)
    ] = 1 << 24
    model_loader_extra_config: Annotated[dict[str, Any] | None, _option(
        'Loader options as vLLM names them: {"enable_multithread_load": true, "num_threads": 8} reads ahead with 8 threads; '
        '{"concurrency": 8} sets only their number', check=check_loader,
    )] = None  # fmt: skip
    use_tqdm_on_load: Annotated[bool, _option("Progress bar while loading")] = True

    @property
    def reading(self) -> tuple[str, int]:
        """(safetensors_load_strategy, threads): how weight files are read."""
        extra = self.model_loader_extra_config or {}
        strategy = "prefetch" if extra.get("enable_multithread_load") else "lazy"
        threads = extra.get("num_threads", extra.get("concurrency", self.safetensors_prefetch_num_threads))
        return self.safetensors_load_strategy or strategy, threads
