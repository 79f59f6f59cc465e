"""Options of the scheduler: which requests run in a step, and with how many tokens."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, ClassVar

from thalweg.options.kv_events import KvEventsOptions
from thalweg.options.option import Option, Rules

_option = partial(Option, group="SchedulerConfig")


def check_limits(args: "SchedulerOptions") -> Iterator[str]:
    for part, whole in (("max_num_active_seqs", "max_num_seqs"), ("max_num_scheduled_tokens", "max_num_batched_tokens")):
        least, most = getattr(args, part), getattr(args, whole)
        if least is not None and most is not None and least > most:
            yield f"{part} ({least}) must not exceed {whole} ({most})"
    if args.max_long_partial_prefills > args.max_num_partial_prefills:
        yield "max_long_partial_prefills must not exceed max_num_partial_prefills"


class SchedulerOptions(KvEventsOptions, kw_only=True, frozen=True):
    """Which requests run in a step."""

    max_num_seqs: Annotated[int | None, _option("Sequences processed per step", ge=1)] = None
    max_num_batched_tokens: Annotated[int | None, _option("Token budget per scheduler step", kind="human-int", ge=1)] = None
    max_num_active_seqs: Annotated[int | None, _option("Most sequences that run at once, at most --max-num-seqs", ge=1)] = None
    max_num_scheduled_tokens: Annotated[
        int | None, _option("Most tokens of a step, at most --max-num-batched-tokens", kind="human-int", ge=1)
    ] = None
    performance_mode: Annotated[str, _option(
        "Preset of defaults. interactivity: half the tokens per step, streams slowed by prompts at most by a quarter; "
        "throughput: twice the sequences and tokens, no bound on the slowdown", group="General",
        choices=("balanced", "interactivity", "throughput"),
    )] = "balanced"  # fmt: skip
    enable_chunked_prefill: Annotated[bool, _option("Allow prompts to be processed in token-budget pieces")] = True
    max_num_partial_prefills: Annotated[int, _option("Prompts that may be partially prefilled together", ge=1)] = 4
    max_long_partial_prefills: Annotated[int, _option("Long prompts that may prefill concurrently", ge=1)] = 1
    max_prefill_slowdown: Annotated[float | None, _option(
        "Running streams are slowed at most by this factor while other prompts are computed; 0: no limit; default: 2, or by "
        "performance-mode", tier="own", gt=1, le=1e6, also=(0,), note="0: no limit",
    )] = None  # fmt: skip
    long_prefill_token_threshold: Annotated[int, _option("Prompt length regarded as long; zero disables", ge=0)] = 0
    scheduler_reserve_full_isl: Annotated[bool, _option(
        "Start a prompt only if the cache has room for the whole prompt, not just its first chunk",
    )] = True  # fmt: skip
    watermark: Annotated[float, _option("Share of blocks kept free when prompts are admitted", ge=0, lt=1, none=True)] = 0.0
    prefill_schedule_interval: Annotated[int, _option("Start prompts in every so many steps only", ge=1)] = 1
    scheduling_policy: Annotated[str, _option("Arrival order or request priority", choices=("fcfs", "priority"))] = "fcfs"
    stream_interval: Annotated[int, _option("Tokens per streamed chunk, after the first token", ge=1)] = 1
    async_scheduling: Annotated[bool | None, _option(
        "Schedule the next step while the device runs; off: read every step first; default: the platform's choice",
    )] = None  # fmt: skip
    RULES: ClassVar[Rules] = (check_limits,)
