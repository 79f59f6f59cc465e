"""Options of request features: structured output, reasoning, log-probabilities."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

from thalweg.options.adapters import AdapterOptions
from thalweg.options.option import Option

LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
_SWITCHES = ("disable_any_whitespace", "disable_additional_properties", "enable_jump_forward")
_SAME_ALWAYS: dict[str, tuple[Any, ...]] = {
    "reasoning_parser": ("", None), "reasoning_parser_plugin": ("", None), "enable_in_reasoning": (False, None),
    "disable_fallback": (True, False, None),
}  # fmt: skip
"""Keys of structured_outputs_config, and values that ask for nothing. There is no other engine to fall back on."""
_option = partial(Option, group="ModelConfig")


def check_grammars(settings: dict[str, Any]) -> Iterator[str]:
    """The keys of structured_outputs_config."""
    for key, value in settings.items():
        if key == "backend":
            if value not in ("auto", "guidance"):
                yield (
                    f"unknown backend {value!r}: only guidance (llguidance) is supported, because it accepts"
                    " nothing that a schema forbids; remove it"
                )
        elif key in _SWITCHES:
            if not isinstance(value, bool):
                yield f"{key} must be true or false, not {value!r}"
        elif key not in _SAME_ALWAYS:
            yield f"{key!r:.60} is not known; known are backend, {', '.join(_SWITCHES)}"
        elif value not in _SAME_ALWAYS[key]:
            yield f"{key}: reasoning is never constrained, and has separate flags (--reasoning-parser); remove it"


class RequestOptions(AdapterOptions, kw_only=True, frozen=True):
    """Features available to requests."""

    structured_outputs_config: Annotated[dict[str, Any] | None, _option(
        'Settings of structured output: {"backend": "guidance", "disable_any_whitespace": true, '
        '"disable_additional_properties": true, "enable_jump_forward": true}', group="StructuredOutputsConfig",
        check=check_grammars,
    )] = None  # fmt: skip
    """enable_jump_forward: tokens that the grammar forces are computed together."""
    reasoning_config: Annotated[dict[str, Any] | None, _option(
        'Markers of reasoning, for thinking_token_budget: {"reasoning_start_str": "<think>", "reasoning_end_str": "</think>"}, '
        'or {"reasoning_parser": NAME}', group="General",
    )] = None  # fmt: skip
    """None: those two, where they are tokens."""
    renderer_num_workers: Annotated[int, _option("Processes that render chat templates", ge=1, le=64)] = 2
    logprobs_mode: Annotated[str, _option("Return raw or processed, logits or log-probabilities", choices=LOGPROBS_MODES)] = (
        "raw_logprobs"
    )
    max_logprobs: Annotated[int, _option("Upper limit a request may ask; -1 unlimited", ge=-1, note="-1: no limit")] = 20
