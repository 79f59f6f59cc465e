"""Whole numbers in the address of a request. Only this module reads them: bounds are checked before a number is made."""

from __future__ import annotations

import re

from starlette.requests import Request

from thalweg.server.errors import ApiError

MAX_DIGITS = 32
"""Digits of a number, leading zeros included. Python refuses to read more than 4,300."""
_WHOLE = re.compile(rf"-?[0-9]{{1,{MAX_DIGITS}}}")


def whole(http: Request, name: str, otherwise: int, least: int = 0, most: int = 2**31 - 1) -> int:
    """The query parameter `name`, from `least` to `most`. `otherwise`, where the address lacks it. ApiError names it."""
    value = http.query_params.get(name)
    if value is None:
        return otherwise
    number = int(value) if _WHOLE.fullmatch(value) else None
    if number is None or not least <= number <= most:
        raise ApiError(f"{name}: must be a whole number between {least} and {most}, not {value[:40]!r}", name)
    return number
