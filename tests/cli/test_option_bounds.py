"""Declarations of options: whatever a field declares is checked, in every class of the chain."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
import pytest

from thalweg.config import EngineArgs, check_args
from thalweg.errors import ConfigError
from thalweg.options.flag import check, fields_of
from thalweg.options.option import Option
from thalweg.server.settings import ServerSettings

BOUNDED = [(c, f) for c in (EngineArgs, ServerSettings) for f in fields_of(c).values() if f.option.bounds]


@pytest.mark.parametrize(("settings", "flag"), BOUNDED, ids=lambda x: getattr(x, "dest", ""))
def test_a_number_outside_the_bounds_of_its_field_is_refused_by_name(settings, flag):
    o = flag.option
    outside = [limit - 1 for limit in (o.ge, o.gt) if limit is not None]
    outside += [limit + 1 for limit in (o.le, o.lt) if limit is not None]
    outside += [limit for limit in (o.gt, o.lt) if limit is not None] + [float("nan")]
    for value in outside:
        if value in o.also:
            continue
        with pytest.raises(ConfigError, match=flag.dest.replace("_", "[_-]") + ":? must be .*, not "):
            check_args(settings(**{flag.dest: value})) if settings is EngineArgs else settings(**{flag.dest: value})


def test_an_exception_to_the_bounds_and_what_was_not_said_are_accepted():
    option = Option("", "", gt=1, also=(0,), note="0: no limit", unit="seconds")
    assert [list(option.problems(value)) for value in (None, 0, 2)] == [[], [], []]
    assert list(option.problems("2")) == ["must be a number, not '2'"]
    assert list(option.problems(0.5)) == ["must be above 1 seconds (0: no limit), not 0.5"]


def test_a_value_that_is_refused_says_why_and_any_other_names_the_choices():
    option = Option("", "", choices=("a", "b"), refused={"c": "it is slow; use a"}, note="a: the first")
    assert list(option.problems("c")) == ["c: it is slow; use a"]
    assert list(option.problems("d")) == ["must be one of a, b, not 'd' (a: the first)"]


class Below(msgspec.Struct, kw_only=True):
    low: Annotated[int, Option("", "", check=lambda value: ["is odd"] if value % 2 else [])] = 0
    RULES: ClassVar = (lambda s: ["low exceeds high"] if s.low > s.high else [],)


def refuse(settings):
    raise ConfigError("one", "two")


class Above(Below, kw_only=True):
    high: Annotated[int, Option("", "", le=9)] = 0
    RULES: ClassVar = (refuse,)


def test_fields_and_the_rules_of_every_class_are_told_together():
    with pytest.raises(ConfigError) as e:
        check(Above(low=11, high=10), lambda name, words: f"{name} {words}")
    assert e.value.problems == ("low is odd", "high must be at most 9, not 10", "low exceeds high", "one", "two")


def test_a_rule_that_stumbles_over_a_value_of_a_wrong_type_leaves_its_problem_to_be_told():
    with pytest.raises(ConfigError, match=r"^max_num_active_seqs must be a number, not '3'$"):
        check_args(EngineArgs(max_num_active_seqs="3", max_num_seqs=2))


def test_a_field_without_an_option_is_a_mistake_that_is_named():
    class Bare(msgspec.Struct):
        x: Annotated[int, "no option"] = 1

    with pytest.raises(TypeError, match=r"Bare\.x declares no Option"):
        fields_of(Bare)
