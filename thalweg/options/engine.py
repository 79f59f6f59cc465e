"""EngineArgs: all options of an engine. `None` in a field means that the user said nothing.

Each file of this folder declares the options of one subject, in a class that continues the one before, because msgspec
structs have one base. Field names are vLLM's. Flags have `-` for `_`.
"""

from thalweg.options.flag import check
from thalweg.options.observation import ObservationOptions


class EngineArgs(ObservationOptions, kw_only=True, frozen=True):
    """Engine settings under their public names. Only supported ones are fields."""


def check_args(args: EngineArgs) -> None:
    """Check all that needs neither model nor device. ConfigError lists all problems."""
    check(args, lambda name, words: f"{name} {words}" if words.startswith("must ") else f"{name}: {words}")
