"""Options of the device: the platform, its kernels, graphs, threads, and how many devices share a model."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

from thalweg.options.option import Option
from thalweg.options.weights import WeightOptions

_option = partial(Option, group="DeviceConfig")


def check_sizes(sizes: list[int]) -> Iterator[str]:
    if not sizes or min(sizes) < 1:
        yield f"must be sizes of at least 1, not {sizes}"


def check_ids(ids: list[int]) -> Iterator[str]:
    if not ids or min(ids) < 0:
        yield f"must be numbers of devices, from 0, not {ids}"


class DeviceOptions(WeightOptions, kw_only=True, frozen=True):
    """Where the model runs, and with which kernels."""

    device: Annotated[
        str, _option("Platform to run on: auto (the best that can run here) or a name that `thalweg backends` lists")
    ] = "auto"
    strict_kernels: Annotated[bool, _option("Refuse to start when an op would fall back to its reference body", tier="own")] = (
        False
    )
    batch_invariant: Annotated[bool | None, _option(
        "Only kernels whose rows do not depend on the rest of the batch: same seed, same text (default: where the device has "
        "them; given: refuse to start where it has not)", group="EngineArgs", tier="own",
    )] = None  # fmt: skip
    attention_backend: Annotated[
        str, _option("Which kind of attention is used: auto, or a name of this device's", group="AttentionConfig", none=True)
    ] = "auto"
    """Which of the device's kinds of attention is used, by our name or the field's (CPU_ATTN, TRITON_ATTN, ...). auto:
    the first that can do what a layer needs."""
    enforce_eager: Annotated[bool, _option("Never compile or capture graphs", group="ModelConfig")] = False
    """Run every step as it is written: no graph is captured, nothing is recorded. Refused where a compiler makes every step."""
    cudagraph_capture_sizes: Annotated[list[int] | None, _option(
        "Sequences of the decoding steps that graphs are captured for", group="CompilationConfig", check=check_sizes,
    )] = None  # fmt: skip
    """None: the platform's choice. Refused where no graphs are captured by size."""
    max_cudagraph_capture_size: Annotated[
        int | None, _option("Sequences of the largest captured decoding step", group="CompilationConfig", ge=1)
    ] = None
    """Steps of more run uncaptured."""
    threads: Annotated[
        int | None, _option("Threads of the engine process; unset lets the platform choose", tier="own", ge=1)
    ] = None
    additional_config: Annotated[dict[str, Any] | None, _option(
        "Free-form settings handed to the active hardware platform plugin", group="General", tier="specialist",
    )] = None  # fmt: skip
    """The platform's own knobs, by name."""
    device_ids: Annotated[
        list[int] | None, _option("Which devices of the machine are used", group="ParallelConfig", check=check_ids)
    ] = None
    """Numbers of the driver, from 0, as many as the model needs. None: the first."""
    tensor_parallel_size: Annotated[
        int, _option("Ranks that split each layer", group="ParallelConfig", tier="scale", aliases=("-tp",), ge=1)
    ] = 1
    """Devices that share the model, each with its part of every layer. More than one only where one process drives them all."""
