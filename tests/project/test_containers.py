"""The Dockerfiles of docker/, which are not built here: what they say is read as Docker would."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from thalweg.cli import common, flags, serve
from thalweg.hal import discovery
from thalweg.models import registry, sizes

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker"
FILES = sorted(FOLDER.glob("Dockerfile.*"))
SHAPES = sorted((FOLDER / "shapes").iterdir())


def instructions(file: Path) -> list[tuple[str, str]]:
    """(instruction, the rest), continued lines joined and comments left out."""
    lines = [x for x in file.read_text().splitlines() if not x.startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())]


def last(file: Path, word: str) -> Any:
    """The last such instruction's words, which are JSON; () where there is none."""
    found = [rest for name, rest in instructions(file) if name == word]
    return json.loads(found[-1]) if found else ()


def started(file: Path, *arguments: str) -> tuple[argparse.Namespace, Any]:
    """What `docker run IMAGE arguments` starts, read by the command line itself."""
    entry, default = last(file, "ENTRYPOINT"), last(file, "CMD")
    assert entry[:2] == ["thalweg", "serve"]
    words = [*entry[2:], *(arguments or default)]
    namespace = common.parse("serve", words, serve._arguments, about="", server=True)
    return namespace, serve.settings(flags.server_settings(namespace))


def test_every_platform_with_hardware_has_a_container() -> None:
    assert {f.suffix[1:] for f in FILES} == set(discovery.names()) - {"null", "reference"}


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.suffix[1:])
@pytest.mark.parametrize("arguments", [(), ("org/model", "--max-model-len", "4096"), ("--api-key", "secret")])
def test_a_container_is_reachable_on_its_device_whatever_arguments_it_gets(file: Path, arguments: tuple[str, ...]) -> None:
    namespace, settings = started(file, *arguments)
    args = common.engine_args(namespace, namespace.model_tag)
    assert (settings.host, settings.port) == ("0.0.0.0", 8000)
    assert args.device == file.suffix[1:]
    assert (args.model == "org/model") == ("org/model" in arguments)
    assert ("EXPOSE", "8000") in instructions(file)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.suffix[1:])
def test_a_flag_given_to_a_container_wins(file: Path) -> None:
    assert started(file, "--port", "9000")[1].port == 9000


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.suffix[1:])
def test_what_a_dockerfile_copies_and_installs_is_there(file: Path) -> None:
    extras = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    for word, rest in instructions(file):
        if word == "COPY":
            assert [x for x in rest.split()[:-1] if not (ROOT / x).exists()] == []
        for extra in ",".join(re.findall(r'"\.\[([\w,]+)\]"', rest)).split(",") if '".[' in rest else ():
            assert re.search(rf"^{extra} = ", extras, re.MULTILINE)


@pytest.mark.parametrize("name", ["cuda", "rocm"])
def test_kernels_are_compiled_into_the_images_of_gpus(name: str) -> None:
    file = FOLDER / f"Dockerfile.{name}"
    said = dict(rest.split("=", 1) for word, rest in instructions(file) if word == "ARG")
    (command,) = (rest for word, rest in instructions(file) if word == "RUN" and "thalweg compile" in rest)
    assert f'thalweg compile --device {name} --arch "$arch" "shapes/$shape" || exit 1' in command
    archs, shapes = (shlex.split(said[k])[0].split() for k in ("KERNEL_ARCHS", "KERNEL_SHAPES"))
    assert set(archs) <= set(discovery.load(name).architectures())
    assert {s.name for s in SHAPES} == set(shapes)
    words = [word for word, _ in instructions(file)]
    assert words.index("USER") < words.index("ENV")  # whoever serves may add to the cache
    assert any(rest.startswith("TRITON_CACHE_DIR=") for word, rest in instructions(file) if word == "ENV")


@pytest.mark.parametrize(("name", "billions"), [("llama-3.2-1b", 1.236), ("llama-3.1-8b", 8.03), ("qwen2.5-7b", 7.616),
                                                ("qwen3-8b", 8.191)])  # fmt: skip
def test_the_shapes_are_those_of_the_published_models(name: str, billions: float) -> None:
    config = json.loads((FOLDER / "shapes" / name / "config.json").read_text())
    assert sizes.stored_values(registry.family(config)(config)) / 1e9 == pytest.approx(billions, rel=2e-3)
