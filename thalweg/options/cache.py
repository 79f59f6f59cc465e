"""Options of the KV cache and the prefix cache."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated

import msgspec

from thalweg.options.data_parallel import DataParallelOptions
from thalweg.options.option import Option

KV_CACHE_DTYPES = {
    "auto": "", "float32": "float32", "bfloat16": "bfloat16", "float16": "float16", "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2", "int8_per_token_head": "int8",
}  # fmt: skip
"""By name: `AttnSpec.kv_dtype`."""
_option = partial(Option, group="CacheConfig")


def check_layers(layers: list[str]) -> Iterator[str]:
    if odd := [s for s in layers if not s.isdecimal() and s != "sliding_window"]:
        yield f"{odd[0]!r:.40} is neither a layer's number nor sliding_window"


class CacheOptions(DataParallelOptions, kw_only=True, frozen=True):
    """Size and contents of the KV cache."""

    block_size: Annotated[int | None, _option("Tokens per KV-cache page; platform chooses when unset", ge=1)] = None
    kv_cache_dtype: Annotated[str, _option(
        "Storage type of cached keys and values; auto: the type the checkpoint names, else the model's",
        choices=tuple(KV_CACHE_DTYPES),
    )] = "auto"  # fmt: skip
    kv_cache_dtype_skip_layers: Annotated[list[str], _option(
        "Layers that keep keys and values in the model's type: their numbers, or sliding_window", tier="specialist",
        check=check_layers,
    )] = msgspec.field(default_factory=list)  # fmt: skip
    kv_cache_memory_bytes: Annotated[
        int | None, _option("Fixed KV budget per device; overrides utilisation fraction", kind="human-int", ge=1)
    ] = None
    num_gpu_blocks_override: Annotated[int | None, _option("Force KV block count, for tests", ge=1)] = None
    gpu_memory_utilization: Annotated[
        float, _option("Fraction of device memory this instance may use", aliases=("--device-memory-utilization",), gt=0, le=1)
    ] = 0.92
    mamba_block_size: Annotated[int | None, _option(
        "Tokens between states of recurrent layers that the prefix cache keeps, a multiple of block_size; default: about 1024",
        tier="specialist", ge=1,
    )] = None  # fmt: skip
    enable_prefix_caching: Annotated[bool, _option("Reuse KV blocks of shared prompt prefixes")] = True
    prefix_caching_hash_algo: Annotated[str, _option("Hash function for block content keys", choices=("blake2b", "sha256"))] = (
        "blake2b"
    )
    """Every hash is keyed with a secret, and hits are compared, so it changes no answer."""
    max_cache_retention: Annotated[float, _option(
        "Most seconds for which a request may ask to keep its KV blocks (cache_retention, cache_control); 0: none", tier="own",
        ge=0, le=86400, unit="seconds",
    )] = 3600.0  # fmt: skip
    disable_sliding_window: Annotated[
        bool, _option("Attend to all tokens in window layers, and cap the context at the window", group="ModelConfig")
    ] = False

    @property
    def kv_dtype(self) -> str:
        """`kv_cache_dtype` as backends know it (`AttnSpec.kv_dtype`). "": the model's dtype."""
        return KV_CACHE_DTYPES[self.kv_cache_dtype]
