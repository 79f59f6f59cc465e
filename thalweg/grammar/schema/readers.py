"""What a schema allows and readers of JSON do not read as it: kept out, so that a valid answer is valid for them too.

Readers hold a number in 64 bits: 7.2500000000000000001 is 7.25 there, and not more than 7.25. So a bound whose excluded side is
nearer to zero moves by one in the fifteenth digit. `grammar.guard` ends fractions at fifteen digits, which serves the others.
Readers' dates know leap years, begin with the year 1, and have no leap seconds.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

DIGITS = 14
"""After the first. A number of so many is told apart from its neighbours in 64 bits."""
_YEAR = r"(?:[1-9]\d{3}|0[1-9]\d\d|00[1-9]\d|000[1-9])"
_LEAP = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
DATE = f"(?:{_YEAR}-{_DAY}|{_LEAP}-02-29)"
SECONDS = r"\d\d:\d\d:[0-5]\d"
DATES = {"date": f"^{DATE}$", "date-time": f"^{DATE}[Tt ]{SECONDS}", "time": f"^{SECONDS}"}
"""Patterns beside a format."""


def dates(schema: dict[str, Any]) -> list[str]:
    """Patterns that hold too."""
    form = schema.get("format")
    return [DATES[form]] if isinstance(form, str) and form in DATES else []


def bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """Bounds that numbers with a fraction keep in 64 bits. Not those above a magnitude: next to 5, the library refuses 4.9."""
    if schema.get("type") == "integer":
        return schema
    for strict, bound, sign in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        beyond = _beyond(schema.get(strict), sign)
        if beyond is not None:
            others = [schema[bound]] if bound in schema else []
            schema = {k: v for k, v in schema.items() if k not in (strict, bound)}
            schema[bound] = max([beyond, *others]) if sign > 0 else min([beyond, *others])
    return schema


def _beyond(value: Any, sign: int) -> int | float | None:
    """The number next to this one and farther from zero, of those with 15 digits. None: none is, or it is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value * sign < 0:
        return None
    at = Decimal(repr(value))
    place = max(at.adjusted(), 0) - DIGITS
    if place > 0:
        return None
    near = at + sign * Decimal(1).scaleb(place)
    return int(near) if near == near.to_integral_value() else float(near)
