"""Options of the device: the platform, its kernels, graphs, threads, and how many devices share a model."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, ClassVar

from thalweg.executors import find_problem
from thalweg.options.option import Option, Rules
from thalweg.options.weights import WeightOptions

_option = partial(Option, group="DeviceConfig")


def check_sizes(sizes: list[int]) -> Iterator[str]:
    if not sizes or min(sizes) < 1:
        yield f"must be sizes of at least 1, not {sizes}"


def check_ids(ids: list[int]) -> Iterator[str]:
    if not ids or min(ids) < 0:
        yield f"must be numbers of devices, from 0, not {ids}"


def check_layers(sizes: list[int]) -> Iterator[str]:
    if not sizes or min(sizes) < 1:
        yield f"must be numbers of layers of at least 1, not {sizes}"


def check_executor(name: str) -> Iterator[str]:
    if (problem := find_problem(name)) is not None:
        yield problem


def check_invariance(args: "DeviceOptions") -> Iterator[str]:
    if args.tp_invariant and args.batch_invariant is False:
        yield "tp_invariant: kernels that depend on the batch depend on the number of ranks too; omit batch_invariant"


class DeviceOptions(WeightOptions, kw_only=True, frozen=True):
    """Where the model runs, and with which kernels."""

    device: Annotated[
        str, _option("Platform to run on: auto (the best that can run here) or a name that `thalweg backends` lists")
    ] = "auto"
    strict_kernels: Annotated[bool, _option("Refuse to start when an op would fall back to its reference body", tier="own")] = (
        False
    )
    batch_invariant: Annotated[bool | None, _option(
        "Only batch-invariant kernels: same seed, same text in any batch (default: where the device has "
        "them; given: refuse to start where it has not)", group="EngineArgs", tier="own",
    )] = None  # fmt: skip
    tp_invariant: Annotated[bool, _option(
        "Divide no sum among ranks: same seed, same text with any tensor_parallel_size. Costs larger exchanges, and with "
        "experts a result for every choice", group="EngineArgs", tier="own",
    )] = False  # fmt: skip
    attention_backend: Annotated[str, _option(
        "Attention backend, by this device's name or vLLM's; auto: the first that supports the layer",
        group="AttentionConfig", none=True,
    )] = "auto"  # fmt: skip
    enforce_eager: Annotated[bool, _option(
        "Never compile or capture graphs; refused where a compiler makes every step", group="ModelConfig",
    )] = False  # fmt: skip
    cudagraph_capture_sizes: Annotated[list[int] | None, _option(
        "Batch sizes of decode steps that graphs are captured for; default: the platform's. Refused where no graphs are "
        "captured by size", group="CompilationConfig", check=check_sizes,
    )] = None  # fmt: skip
    max_cudagraph_capture_size: Annotated[int | None, _option(
        "Largest captured batch size of a decode step; larger steps run uncaptured", group="CompilationConfig", ge=1,
    )] = None  # fmt: skip
    threads: Annotated[int | None, _option(
        "Threads of the engine process, and of each further rank; unset lets the platform choose", tier="own", ge=1,
    )] = None  # fmt: skip
    additional_config: Annotated[dict[str, Any] | None, _option(
        "Settings of the hardware platform, by name", group="General", tier="specialist",
    )] = None  # fmt: skip
    device_ids: Annotated[list[int] | None, _option(
        "Devices to use, by the driver's numbers from 0, as many as the model needs; default: the first",
        group="ParallelConfig", check=check_ids,
    )] = None  # fmt: skip
    tensor_parallel_size: Annotated[int, _option(
        "Devices (on cpu, processes) that split each layer, and with it the weights and the cache", group="ParallelConfig",
        tier="scale", aliases=("-tp",), ge=1,
    )] = 1  # fmt: skip
    pipeline_parallel_size: Annotated[int, _option(
        "Stages of consecutive layers, each on its own tensor_parallel_size devices (on cpu, processes)",
        group="ParallelConfig", tier="scale", aliases=("-pp",), ge=1,
    )] = 1  # fmt: skip
    pipeline_layer_partition: Annotated[list[int] | None, _option(
        "Layers of each stage, as many numbers as pipeline_parallel_size; default: as equal as possible, more in the middle",
        group="ParallelConfig", tier="own", check=check_layers,
    )] = None  # fmt: skip
    enable_expert_parallel: Annotated[bool, _option(
        "With tensor_parallel_size, place each expert whole on one of the devices rather than a share of it on every one",
        group="ParallelConfig", tier="scale", aliases=("-ep",),
    )] = False  # fmt: skip
    data_parallel_size: Annotated[int, _option(
        "Engines that share the requests, each with the whole model; several of one server only on processors",
        group="ParallelConfig",
        tier="scale", aliases=("-dp",), ge=1, le=64,
    )] = 1  # fmt: skip
    distributed_executor_backend: Annotated[str | None, _option(
        "Executor of the steps: uni (the engine's process), mp (that and a process for each further rank), external_launcher "
        "(a program with LLM(...) for each rank, by torchrun), ray (the further ranks on a Ray cluster), or the name of an "
        "installed package's executor; default: mp where there are several ranks, else uni", group="ParallelConfig",
        tier="scale", check=check_executor,
    )] = None  # fmt: skip
    RULES: ClassVar[Rules] = (check_invariance,)
