"""The output format of a request, in any spelling: response_format, structured_outputs, and the older guided_ fields.
RequestError names the field as the client wrote it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg.params import StructuredOutputsParams
from thalweg.server.errors import ApiError

if TYPE_CHECKING:
    from thalweg.server.core.request import GenerationRequest

GUIDED = ("json", "regex", "choice", "grammar")
KNOWN = frozenset(
    {"json", "regex", "choice", "grammar", "json_object", "structural_tag", "disable_any_whitespace",
     "disable_additional_properties", "whitespace_pattern"}
)  # fmt: skip
UNUSED = frozenset({"disable_fallback", "_backend", "_backend_was_auto"})
"""Keys of older clients, about the grammar backend."""


def read_structured_outputs(request: GenerationRequest) -> StructuredOutputsParams | None:
    """None: any text will do."""
    found = [f for f in (_response_format(request), _structured_outputs(request), *_read_guided(request)) if f is not None]
    if len(found) > 1:
        names = " and ".join(f.asked_as or "structured_outputs" for f in found)
        raise ApiError(f"only one of {names} can hold: leave out the others", found[1].asked_as or "structured_outputs")
    return found[0] if found else None


def _response_format(request: GenerationRequest) -> StructuredOutputsParams | None:
    requested, name = request.response_format, "response_format"
    if requested is None:
        return None
    match requested.get("type"):
        case "text":
            return None
        case "json_object":
            return _json_object(requested, name)
        case "json_schema":
            inner = requested.get("json_schema")
            if not isinstance(inner, dict):
                raise ApiError(
                    f"{name}: type json_schema needs json_schema, an object with name and schema", f"{name}.json_schema"
                )
            where = f"{name}.json_schema.schema"
            schema = inner.get("schema")
            if not isinstance(schema, dict | bool):
                raise ApiError(f"{where} must be an object: the JSON schema", where)
            return StructuredOutputsParams(json=schema, asked_as=where)
        case "structural_tag":
            return StructuredOutputsParams(structural_tag=requested, asked_as=name)
        case other:
            raise ApiError(f"{name}: type must be text, json_object, json_schema or structural_tag, not {other!r:.60}", name)


def _json_object(requested: dict[str, Any], name: str) -> StructuredOutputsParams:
    """Other servers, and version 1 of Cohere's API, have a schema here too."""
    if requested.get("json_schema") is not None:
        where = f"{name}.json_schema"
        raise ApiError(f"{where}: needs type json_schema, not json_object", where)
    schema, where = requested.get("schema"), f"{name}.schema"
    if schema is None:
        return StructuredOutputsParams(json_object=True, asked_as=name)
    if not isinstance(schema, dict):
        raise ApiError(f"{where} must be an object: the JSON schema", where)
    return StructuredOutputsParams(json=schema, asked_as=where)


def _structured_outputs(request: GenerationRequest) -> StructuredOutputsParams | None:
    requested = request.structured_outputs
    if requested is None:
        return None
    given = {k: v for k, v in requested.items() if v is not None and k not in UNUSED}
    unknown = sorted(given.keys() - KNOWN)
    if unknown:
        name = f"structured_outputs.{unknown[0]:.60}"
        raise ApiError(f"{name} is not known; known are {', '.join(sorted(KNOWN))}", name)
    for key in ("disable_any_whitespace", "disable_additional_properties", "json_object"):
        if not isinstance(given.get(key, False), bool):
            raise ApiError(f"structured_outputs.{key} must be true or false", f"structured_outputs.{key}")
    if not given.keys() - {"disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"}:
        raise ApiError(
            "structured_outputs: needs one of json, regex, choice, grammar, json_object, structural_tag", "structured_outputs"
        )
    return StructuredOutputsParams(**given)


def _read_guided(request: GenerationRequest) -> list[StructuredOutputsParams]:
    out = []
    for kind in GUIDED:
        name = f"guided_{kind}"
        value: Any = getattr(request, name)
        if value is not None:
            fields = {kind: value, "whitespace_pattern": request.guided_whitespace_pattern, "asked_as": name}
            out.append(StructuredOutputsParams(**fields))
    return out
