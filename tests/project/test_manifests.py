"""The Kubernetes manifests of examples/: arguments that the command line accepts, probes and ports that the server has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from thalweg.cli import common, flags, serve
from thalweg.engine.control.store.connect import load_store
from thalweg.options.kv_events import read_kv_events
from thalweg.options.kv_store import transfer
from thalweg.server.http.probes import PROBES

FILES = sorted((Path(__file__).parents[2] / "examples" / "kubernetes").glob("*.yaml"))


def pods(file: Path) -> list[dict[str, Any]]:
    """Deployments of a file."""
    return [each for each in yaml.safe_load_all(file.read_text()) if each["kind"] == "Deployment"]


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_a_manifest_starts_a_server_that_its_probes_reach(file: Path) -> None:
    assert pods(file)
    for deployment in pods(file):
        template = deployment["spec"]["template"]
        labels = deployment["spec"]["selector"]["matchLabels"].items()
        assert labels <= template["metadata"]["labels"].items(), "the Deployment selects its pods"
        (server,) = template["spec"]["containers"]
        words = ["--host", "0.0.0.0", "--port", "8000", *server["args"]]  # as the entry point of the image
        namespace = common.parse("serve", words, serve._arguments, about="", server=True)
        args, settings = common.engine_args(namespace, namespace.model_tag), serve.settings(flags.server_settings(namespace))
        ports = {p["containerPort"] for p in server["ports"]}
        assert settings.port in ports
        assert settings.metrics_port is None or settings.metrics_port in ports
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert server[kind]["httpGet"]["path"] in PROBES
            assert server[kind]["httpGet"]["port"] == settings.port
        if (grace := template["spec"].get("terminationGracePeriodSeconds")) is not None:
            assert settings.shutdown_timeout < grace
        config = transfer(args)
        assert config is not None
        assert load_store(config.kv_connector).check(config.options) == []
        mounts = [m["mountPath"] for m in server["volumeMounts"]]
        assert any(str(args.kv_key_secret).startswith(m) for m in mounts)
        assert {m["name"] for m in server["volumeMounts"]} == {v["name"] for v in template["spec"]["volumes"]}
        if (events := read_kv_events(args)) is not None:
            assert int(events.endpoint.rpartition(":")[2]) in ports
            assert int(str(events.replay_endpoint).rpartition(":")[2]) in ports
