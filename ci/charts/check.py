"""Objects of manifests, and custom resources against the reduced definitions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft7Validator

from charts.definitions import find_pods, load_schemas

CORE = frozenset({"v1", "apps/v1", "policy/v1", "autoscaling/v2", "batch/v1"})
"""API versions of Kubernetes itself."""


def find_manifests(examples: Path) -> list[Path]:
    """Files of Kubernetes objects. Templates and values of the chart are none."""
    return [*sorted((examples / "kubernetes").glob("*.yaml")), *sorted((examples / "leaderworkerset").glob("*.yaml"))]


def read_objects(path: Path) -> list[dict[str, Any]]:
    """The objects of a file, without empty documents."""
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def is_core(value: dict[str, Any]) -> bool:
    """Whether Kubernetes itself has the object's kind."""
    return value["apiVersion"] in CORE


def check_objects(objects: list[dict[str, Any]]) -> Iterator[str]:
    """Problems of the custom resources: fields that the definition lacks, and wrong values. A kind without one is a problem."""
    schemas = load_schemas()
    for value in objects:
        if is_core(value):
            continue
        name = f"{value['kind']} {value['metadata']['name']}"
        schema = schemas.get((value["apiVersion"], value["kind"]))
        if schema is None:
            yield f"{name}: {value['apiVersion']} has no definition in ci/charts/schemas"
            continue
        for error in Draft7Validator(schema).iter_errors(value):
            yield f"{name}: {'.'.join(map(str, error.absolute_path))}: {error.message}"


def wrap_pods(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A PodTemplate of Kubernetes for each pod template in custom resources."""
    schemas = load_schemas()
    found = []
    for value in objects:
        for number, template in enumerate(find_pods(schemas.get((value["apiVersion"], value["kind"])), value)):
            name = f"{value['metadata']['name']}-{number}"
            found.append({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}, "template": template})
    return found
