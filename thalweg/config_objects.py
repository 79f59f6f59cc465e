"""What can be wrong with settings that are objects. Each check gives what it found in words, and knows no model or device."""

from __future__ import annotations

from typing import Any

_STRUCTURED = ("disable_any_whitespace", "disable_additional_properties", "enable_jump_forward")
_SAME_ALWAYS: dict[str, tuple[Any, ...]] = {
    "reasoning_parser": ("", None), "reasoning_parser_plugin": ("", None), "enable_in_reasoning": (False, None),
    "disable_fallback": (True, False, None),
}  # fmt: skip
"""Keys of structured_outputs_config, and values that ask for nothing. There is no other engine to fall back on."""


def structured(said: dict[str, Any]) -> list[str]:
    """What is wrong with structured_outputs_config."""
    name, problems = "structured_outputs_config", []
    for key, value in said.items():
        if key == "backend":
            if value not in ("auto", "guidance"):
                problems.append(
                    f"{name}: backend {value!r} is not here: this version has guidance (llguidance) alone, because it accepts"
                    " nothing that a schema forbids; leave it out"
                )
        elif key in _STRUCTURED:
            if not isinstance(value, bool):
                problems.append(f"{name}: {key} must be true or false, not {value!r}")
        elif key not in _SAME_ALWAYS:
            problems.append(f"{name}: {key!r:.60} is not known; known are backend, {', '.join(_STRUCTURED)}")
        elif value not in _SAME_ALWAYS[key]:
            problems.append(
                f"{name}: {key}: reasoning is never constrained, and has flags of its own (--reasoning-parser); leave it out"
            )
    return problems


def decoding(said: dict[str, Any]) -> list[str]:
    """What is wrong with media_io_kwargs."""
    name, problems = "media_io_kwargs", []
    for kind, given in said.items():
        if kind != "image" or not isinstance(given, dict):
            problems.append(f'{name}: {kind!r:.40}: is not like {{"image": {{"rgba_background_color": [255, 255, 255]}}}}')
            continue
        for key, value in given.items():
            if key != "rgba_background_color":
                problems.append(f"{name}: image: {key!r:.60} is not known; this version has rgba_background_color")
            elif (
                not isinstance(value, list | tuple)
                or len(value) != 3
                or not all(type(v) is int and 0 <= v < 256 for v in value)
            ):
                problems.append(f"{name}: image: {key} must be three numbers from 0 to 255, not {value!r:.60}")
    return problems


def loading(said: dict[str, Any]) -> list[str]:
    """What is wrong with model_loader_extra_config."""
    name, problems = "model_loader_extra_config", []
    for key, value in said.items():
        if key == "enable_multithread_load":
            if not isinstance(value, bool):
                problems.append(f"{name}: {key} must be true or false, not {value!r:.60}")
        elif key not in ("num_threads", "concurrency"):
            problems.append(
                f"{name}: {key!r:.60} is not known; this version has enable_multithread_load, num_threads, concurrency"
            )
        elif type(value) is not int or not 1 <= value <= 256:
            problems.append(f"{name}: {key} must be a number from 1 to 256, not {value!r:.60}")
    return problems


def limits(said: dict[str, Any]) -> list[str]:
    """What is wrong with limit_mm_per_prompt: {"image": 4}, or {"image": {"count": 4}}."""
    problems = []
    for kind, limit in said.items():
        count = limit.get("count") if isinstance(limit, dict) and set(limit) <= {"count", "width", "height"} else limit
        if kind not in ("image", "video", "audio") or isinstance(count, bool) or not isinstance(count, int) or count < 0:
            problems.append(f'limit_mm_per_prompt: {kind!r:.40}: {limit!r:.80} is not like {{"image": 4}}')
        elif kind == "video" and count:
            problems.append(f"limit_mm_per_prompt: {kind}: is not read by this version; leave it out, or say 0")
    return problems
