"""The table of every flag and engine argument that users of the field know (assets/flags.json), and what asks for nothing.

The rows are [name, aliases, type, choices, default, group, help, tier]. A flag that is not honoured has a ninth part,
the refusal: why, and what to do instead. The defaults are the field's. Tiers: core (a server on one machine), scale
(many devices or machines), specialist (one model or vendor), own (thalweg's own). Flags that the field has removed are
of two groups. Those of group Removed had no effect any more. Those of group Replaced asked for something.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

REMOVED, REPLACED = "Removed", "Replaced"
GONE = (REMOVED, REPLACED)
TIERS = ("core", "scale", "specialist", "own")
SAME_AS_NOW: dict[str, tuple[str, ...]] = {
    "distributed_executor_backend": ("mp", "uni"),
    "task": ("auto", "generate"),
}
"""Values of flags this version does not have, beside their defaults, that ask for what it does anyway. mp and uni:
one process beside the server."""


ANYWAY = {
    "aggregate_engine_logging": "an engine's statistics are those of the whole server",
    "allow_deprecated_quantization": "no format that is read here is deprecated",
    "code_revision": "of code that is never run, any revision is right",
    "disable_cascade_attn": "there is no cascade attention that could be used",
    "disable_custom_all_reduce": "devices exchange sums by their own library, there is no other way",
    "enable_offline_docs": "/docs comes with the package, and asks nobody else for anything",
    "max_parallel_loading_workers": "one process loads the model, a tensor at a time",
    "mm_encoder_tp_mode": "encoders of images run on one device",
    "show_hidden_metrics_for_version": "no metric is hidden",
    "skip_mm_profiling": "nothing is profiled: what images need follows from the model's sizes",
}
"""Arguments that ask for what happens anyway, whatever their value -> why."""


@dataclass(frozen=True, slots=True)
class Flag:
    name: str
    aliases: tuple[str, ...]
    type: str
    choices: tuple[str, ...] | None
    default: Any
    group: str
    help: str
    tier: str
    refusal: str = ""

    @property
    def dest(self) -> str:
        return self.name.replace("-", "_")

    @property
    def options(self) -> list[str]:
        return [f"--{self.name}", *self.aliases]

    @property
    def honoured(self) -> bool:
        return not self.refusal

    def asks_nothing(self, value: Any) -> bool:
        """Does the flag, so given, ask for what happens anyway? Its default says no more than leaving it out."""
        if self.group == REMOVED:
            return False
        if self.type == "bool":
            return bool(value) is bool(self.default)
        if self.type in ("json", "list") and not isinstance(value, str):
            return value is None or value == self.default or (not value and not self.default)
        if self.type == "json":
            return self.default is not None and value.replace(" ", "") == json.dumps(self.default)
        return str(value) == str(self.default) or str(value) in SAME_AS_NOW.get(self.dest, ())


@cache
def table() -> dict[str, Flag]:
    """Every known flag, by name without dashes in front."""
    rows = json.loads((files("thalweg") / "assets" / "flags.json").read_text(encoding="utf-8"))
    return {r[0]: Flag(r[0], tuple(r[1]), r[2], tuple(r[3]) if r[3] else None, *r[4:]) for r in rows}
