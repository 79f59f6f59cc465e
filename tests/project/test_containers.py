"""The Dockerfiles of docker/, read as Docker would read them. `ci/images` builds them."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

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


def test_the_pods_of_a_leader_worker_set_are_the_machines_of_one_engine() -> None:
    text = (ROOT / "examples" / "leaderworkerset" / "serve.yaml").read_text()
    template = next(yaml.safe_load_all(text))["spec"]["leaderWorkerTemplate"]
    engines = []
    for index, role in enumerate(("leaderTemplate", "workerTemplate")):
        (container,) = template[role]["spec"]["containers"]
        given = {"LWS_GROUP_SIZE": str(template["size"]), "LWS_WORKER_INDEX": str(index), "POD_IP": "10.0.0.1"}
        given["LWS_LEADER_ADDRESS"] = "thalweg-0.thalweg.default"
        words = ["".join(given.get(part, part) for part in re.split(r"\$\((\w+)\)", word)) for word in container["args"]]
        namespace, settings = started(FOLDER / "Dockerfile.cuda", *words)
        assert settings.headless == (index > 0)
        engines.append(common.engine_args(namespace, namespace.model_tag))
    leader, worker = engines
    assert worker.node_rank == 1 < worker.nnodes
    assert leader == msgspec.structs.replace(worker, node_rank=0, master_addr="10.0.0.1")


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


def sources(rest: str) -> list[str]:
    """What a COPY copies out of the build context; [] for one from another stage."""
    return [] if rest.startswith("--from") else rest.split()[:-1]


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.suffix[1:])
def test_a_dockerfile_copies_and_installs_what_exists(file: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word, rest in instructions(file):
        if word == "COPY":
            assert [x for x in sources(rest) if not (ROOT / x).exists()] == []
        for extra in ",".join(re.findall(r'"\.\[([\w,-]+)\]"', rest)).split(",") if '".[' in rest else ():
            assert extra in extras


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.suffix[1:])
def test_a_dockerfile_copies_what_the_build_of_the_package_reads(file: Path) -> None:
    """pip fails at the first file that is named in pyproject.toml and is not in the build context."""
    said = tomllib.loads((ROOT / "pyproject.toml").read_text())
    build = said["tool"]["hatch"]["build"]
    needed = {"pyproject.toml", said["project"]["readme"], *said["project"]["license-files"]}
    needed |= set(build["targets"]["wheel"]["packages"])
    needed |= {hook.get("path", "hatch_build.py") for name, hook in build["hooks"].items() if name == "custom"}
    there: set[str] = set()
    for word, rest in instructions(file):
        if word == "COPY":
            there |= set(sources(rest))
        elif word == "RUN" and '".[' in rest:
            assert needed - there == set()
            return
    raise AssertionError("the package is never installed")


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.suffix[1:])
def test_the_last_stage_runs_as_a_user_and_takes_the_package_from_the_first(file: Path) -> None:
    found = instructions(file)
    starts = [i for i, (word, _) in enumerate(found) if word == "FROM"]
    first, last_stage = found[starts[0] : starts[-1]], found[starts[-1] :]
    assert len(starts) == 2
    assert {rest.split()[0] for word, rest in found if word == "FROM"} == {"${BASE}"}
    assert ("COPY", "--from=build /opt/thalweg /opt/thalweg") in last_stage
    assert [rest for word, rest in last_stage if word == "USER"] == ["thalweg"]
    assert any("THALWEG_NATIVE=1" in rest for word, rest in first if word == "RUN")


@pytest.mark.parametrize("name", ["cuda", "rocm"])
def test_kernels_are_compiled_into_the_images_of_gpus(name: str) -> None:
    file = FOLDER / f"Dockerfile.{name}"
    said = dict(rest.split("=", 1) for word, rest in instructions(file) if word == "ARG")
    (command,) = (rest for word, rest in instructions(file) if word == "RUN" and "thalweg compile" in rest)
    assert f'thalweg compile --device {name} --arch "$arch" "shapes/$shape" || exit 1' in command
    archs, shapes = (shlex.split(said[k])[0].split() for k in ("KERNEL_ARCHS", "KERNEL_SHAPES"))
    assert set(archs) <= set(discovery.load(name).architectures())
    assert {s.name for s in SHAPES} == set(shapes)
    found = instructions(file)
    (cache,) = (i for i, (word, rest) in enumerate(found) if word == "ENV" and rest.startswith("TRITON_CACHE_DIR="))
    assert found.index(("USER", "thalweg")) < cache < found.index(("RUN", command))  # the server's user may add to the cache


@pytest.mark.parametrize(("name", "billions"), [("llama-3.2-1b", 1.236), ("llama-3.1-8b", 8.03), ("qwen2.5-7b", 7.616),
                                                ("qwen3-8b", 8.191)])  # fmt: skip
def test_the_shapes_are_those_of_the_published_models(name: str, billions: float) -> None:
    config = json.loads((FOLDER / "shapes" / name / "config.json").read_text())
    assert sizes.stored_values(registry.family(config)(config)) / 1e9 == pytest.approx(billions, rel=2e-3)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.suffix[1:])
def test_an_image_has_the_command_vllm_and_the_package_has_not(file: Path) -> None:
    assert ("RUN", "ln -s thalweg /opt/thalweg/bin/vllm") in instructions(file)
    assert set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]) == {"thalweg"}
