"""Ray Serve LLM: its OpenAI ingress, in front of replicas of `thalweg.integrations.ray.llm`."""

from __future__ import annotations

import os
from pathlib import Path

from fleets.fleet import MODEL, ROOT, Fleet, Place
from fleets.processes import Process, find_engines_in, find_ports

REPLICAS = 2


class RayServeLlm(Fleet):
    name = "ray-serve-llm"
    packages = ("ray[serve]==2.60.0", "pyarrow", "pandas", "jsonref", "typer", "python-multipart", "fastapi==0.133.1")
    """Not `ray[llm]`: it installs vLLM, whose request types are thalweg's here. Ray 2.60.0 answers 400 with a newer fastapi."""
    modules = ("ray.serve", "jsonref")
    shared = True
    replicas = 0
    missing = {"warm again": "Serve has no events of the caches", "warm": "Serve chooses the less busy of two replicas"}

    def start(self, place: Place) -> str:
        (port,) = find_ports(1)
        program = Path(__file__).parent / "programs" / "ray_serve_llm.py"
        words = [place.environment.python, "-m", "thalweg", "as-vllm", place.environment.python, str(program)]
        # Sockets of Ray lie in its folder, and their paths are bounded.
        environment = {"PYTHONPATH": str(ROOT), "RAY_TMPDIR": str(place.work), "RAY_USAGE_STATS_ENABLED": "0"}
        path = f"{place.environment.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        words += [str(port), MODEL, str(REPLICAS)]
        self._process = Process(words, place.work / "serve.log", {**environment, "PATH": path})
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
