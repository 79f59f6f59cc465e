"""Options of adapters (LoRA)."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, ClassVar

from thalweg.options.option import Option, Rules
from thalweg.options.speculation import SpeculationOptions

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_option = partial(Option, group="LoRAConfig")


def check_rank(rank: int) -> Iterator[str]:
    if rank not in RANKS:
        yield f"must be one of {', '.join(map(str, RANKS))}, not {rank}"


def check_names(modules: list[str]) -> Iterator[str]:
    if not modules:
        yield "must name at least one module"
    elif odd := [m for m in modules if not m or m != m.strip(". ")]:
        yield f"{odd[0]!r:.40} is no name of a module, like q_proj"


def check_defaults(paths: dict[str, Any]) -> Iterator[str]:
    if odd := next((kind for kind, path in paths.items() if not isinstance(path, str) or not path), None):
        yield f"must map kinds of media to paths, and {odd!r:.40} has {paths[odd]!r:.40}"


def check_adapters(args: "AdapterOptions") -> Iterator[str]:
    if args.max_cpu_loras is not None and args.max_cpu_loras < args.max_loras:
        yield f"max_cpu_loras ({args.max_cpu_loras}) must not be less than max_loras ({args.max_loras})"
    if args.default_mm_loras and not args.enable_lora:
        yield "default_mm_loras: adapters need enable_lora (--enable-lora)"


class AdapterOptions(SpeculationOptions, kw_only=True, frozen=True):
    """How many adapters an engine holds. Requests name them (`LoRARequest`)."""

    enable_lora: Annotated[bool, _option("Accept LoRA adapters", none=True)] = False
    max_loras: Annotated[int, _option("Distinct adapters in one batch; requests with others wait", ge=1)] = 1
    max_lora_rank: Annotated[int, _option(
        "Largest adapter rank accepted; each adapter uses memory for this rank", check=check_rank,
    )] = 16  # fmt: skip
    max_cpu_loras: Annotated[int | None, _option(
        "Adapters kept in host memory while no request uses them, at least max-loras; default: max-loras", ge=1,
    )] = None  # fmt: skip
    lora_dtype: Annotated[str | None, _option(
        "Type of adapters on the device: the model's type, in which layers compute",
        choices=("auto", "bfloat16", "float16", "float32"),
    )] = "auto"  # fmt: skip
    lora_target_modules: Annotated[list[str] | None, _option(
        "Modules that adapters may change, each a name or the end of one; others get no memory, and adapters of them are "
        "refused", check=check_names,
    )] = None  # fmt: skip
    default_mm_loras: Annotated[dict[str, Any] | None, _option(
        "Adapters of requests that name none and have media, by kind of media (JSON: {\"image\": PATH})", tier="specialist",
        check=check_defaults,
    )] = None  # fmt: skip
    RULES: ClassVar[Rules] = (check_adapters,)
