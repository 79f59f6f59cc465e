"""OpenAPI schemas of custom resources, reduced to what a check needs.

`schemas/` has one for each resource, with the repository, commit and file of its definition. All are under Apache-2.0.
Reduced: descriptions are left out, and a pod template is `{"x-pod-template": true}`, checked as a PodTemplate of Kubernetes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "schemas"
POD = "x-pod-template"
LEFT_OUT = frozenset(
    {"description", "default", "format", "x-kubernetes-list-map-keys", "x-kubernetes-list-type", "x-kubernetes-map-type",
     "x-kubernetes-validations"}
)  # fmt: skip


def reduce_definition(text: str, version: str, source: str) -> dict[str, Any]:
    """The file for one version of a CustomResourceDefinition. source: repository, commit and path."""
    definition = yaml.safe_load(text)
    (found,) = (v for v in definition["spec"]["versions"] if v["name"] == version)
    group, kind = definition["spec"]["group"], definition["spec"]["names"]["kind"]
    schema = _reduce(found["schema"]["openAPIV3Schema"])
    schema["properties"].pop("status", None)
    schema["properties"]["metadata"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {"source": source, "licence": "Apache-2.0", "apiVersion": f"{group}/{version}", "kind": kind, "schema": schema}


def _reduce(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    if _is_pod_template(schema):
        return {"type": "object", POD: True, "x-kubernetes-preserve-unknown-fields": True}
    reduced: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "properties":
            reduced[name] = {field: _reduce(each) for field, each in value.items()}
        elif name in ("items", "additionalProperties"):
            reduced[name] = _reduce(value)
        elif name in ("allOf", "anyOf", "oneOf"):
            reduced[name] = [_reduce(each) for each in value]
        elif name not in LEFT_OUT:
            reduced[name] = value
    if reduced.get("type") == "object" and "properties" in reduced and not schema.get("x-kubernetes-preserve-unknown-fields"):
        reduced.setdefault("additionalProperties", False)  # the API server drops such fields, or refuses them
    if reduced.pop("x-kubernetes-int-or-string", False):
        reduced["type"] = ["integer", "string"]
        reduced.pop("anyOf", None)
    return reduced


def _is_pod_template(schema: dict[str, Any]) -> bool:
    spec = schema.get("properties", {}).get("spec", {})
    return "metadata" in schema.get("properties", {}) and "containers" in spec.get("properties", {})


def load_schemas() -> dict[tuple[str, str], dict[str, Any]]:
    """Schemas by (apiVersion, kind)."""
    files = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    return {(each["apiVersion"], each["kind"]): each["schema"] for each in files}


def find_pods(schema: Any, value: Any) -> Iterator[dict[str, Any]]:
    """Pod templates in a value of a reduced schema."""
    if not isinstance(schema, dict):
        return
    if schema.get(POD):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from find_pods(schema.get("properties", {}).get(name, schema.get("additionalProperties")), each)
    elif isinstance(value, list):
        for each in value:
            yield from find_pods(schema.get("items"), each)
