"""Options of speculative decoding."""

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, ClassVar

from thalweg.drafters import METHOD, MODEL, SpeculationConfig, configure
from thalweg.errors import ConfigError
from thalweg.options.option import Option, Rules
from thalweg.options.scheduler import SchedulerOptions

_option = partial(Option, group="General")


def check_drafts(args: "SpeculationOptions") -> Iterable[str]:
    given = merge_speculation(args)
    if METHOD in given or MODEL not in given:  # else `engine.planning.draft.resolve_drafter` reads the method from the files
        read_speculation_config(args)
    return ()


class SpeculationOptions(SchedulerOptions, kw_only=True, frozen=True):
    """The drafts to verify."""

    speculative_config: Annotated[dict[str, Any] | None, _option(
        'Drafter and its settings: {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, '
        '"prompt_lookup_max": 4}', group="SpeculativeConfig", aliases=("-sc",),
    )] = None  # fmt: skip
    """The text is the same without."""
    spec_method: Annotated[str | None, _option("Shorthand for speculative-config method")] = None
    spec_model: Annotated[str | None, _option("Shorthand for speculative-config model")] = None
    spec_tokens: Annotated[int | None, _option("Shorthand for speculative-config token count")] = None

    RULES: ClassVar[Rules] = (check_drafts,)


def read_speculation_config(args: "SpeculationOptions") -> SpeculationConfig | None:
    """The requested drafter. None: no drafts. ConfigError lists all problems."""
    given = merge_speculation(args)
    return configure(given) if given else None


def merge_speculation(args: "SpeculationOptions") -> dict[str, Any]:
    """`speculative_config` with the short flags. ConfigError: they differ."""
    settings = dict(args.speculative_config or {})
    short = (("method", args.spec_method), ("model", args.spec_model), ("num_speculative_tokens", args.spec_tokens))
    for key, value in short:
        if value is not None and settings.setdefault(key, value) != value:
            raise ConfigError(f"speculative_config: {key} is {settings[key]!r} there and {value!r} in its short flag; give one")
    return settings
