"""What can be wrong with settings that are objects. Each check gives what it found in words, and knows no model or device."""

from __future__ import annotations

from typing import Any

_STRUCTURED = ("disable_any_whitespace", "disable_additional_properties")
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
