"""Excludes values that a schema allows but JSON readers round or reject, so that a valid answer stays valid for them.

Readers store a number in 64 bits: 7.2500000000000000001 becomes 7.25, which is not more than 7.25. A bound with its excluded
side nearer to zero therefore moves by one in the fifteenth digit. `grammar.guard` ends fractions at fifteen digits, which
covers the other bounds. Dates of readers follow leap years, begin with the year 1, and have no leap seconds.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

DIGITS = 14
"""Digits after the first. 64-bit readers distinguish all numbers with this many digits."""
_YEAR = r"(?:[1-9]\d{3}|0[1-9]\d\d|00[1-9]\d|000[1-9])"
_LEAP = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
DATE = f"(?:{_YEAR}-{_DAY}|{_LEAP}-02-29)"
SECONDS = r"\d\d:\d\d:[0-5]\d"
DATES = {"date": f"^{DATE}$", "date-time": f"^{DATE}[Tt ]{SECONDS}", "time": f"^{SECONDS}"}
"""Format -> a pattern to apply in addition."""


def dates(schema: dict[str, Any]) -> list[str]:
    """Additional patterns for the schema's format."""
    form = schema.get("format")
    return [DATES[form]] if isinstance(form, str) and form in DATES else []


def bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with bounds that 64-bit rounding of fractions cannot cross. Bounds above a magnitude stay: next to 5, the
    library rejects 4.9."""
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
    """The next number with 15 digits, farther from zero. None: there is none, or `value` is not such a bound."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value * sign < 0:
        return None
    at = Decimal(repr(value))
    place = max(at.adjusted(), 0) - DIGITS
    if place > 0:
        return None
    near = at + sign * Decimal(1).scaleb(place)
    return int(near) if near == near.to_integral_value() else float(near)
