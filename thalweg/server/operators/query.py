"""Read the query of operators' requests. Pages of other origins may not operate a server."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request

from thalweg.server.errors import ApiError

TRUTH = {"true": True, "1": True, "false": False, "0": False}


def check_query(http: Request, known: tuple[str, ...]) -> None:
    """ApiError for an unknown name, and for a web page of another origin: without a body a browser sends no preflight."""
    unknown = sorted(set(http.query_params) - set(known))
    if unknown:
        raise ApiError(f"{unknown[0]}: not known here; known are {', '.join(known) or 'no parameters'}", unknown[0])
    origin = http.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != http.headers.get("host"):
        raise ApiError("pages of other origins may not operate this server", status=403)


def flag(http: Request, name: str, otherwise: bool) -> bool:
    value = http.query_params.get(name)
    if value is None:
        return otherwise
    if value.lower() not in TRUTH:
        raise ApiError(f"{name}: {value!r} is neither true nor false", name)
    return TRUTH[value.lower()]
