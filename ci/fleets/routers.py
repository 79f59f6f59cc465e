"""Routers in front of `thalweg serve`, unmodified: they know its routes, its metrics and its KV events."""

from __future__ import annotations

from pathlib import Path

from fleets.fleet import MODEL, REQUEST_SECONDS, Place, Router, share_store
from fleets.processes import Process

ONE = "it has one server of each role"
HISTORY = "it routes by its own history of texts"


class VllmRouter(Router):
    """vllm-router, which routes by KV events."""

    name = "vllm-router"
    packages = ("vllm-router==0.1.17",)
    modules = ("vllm_router",)

    def command(self, place: Place, port: int) -> list[str]:
        words = [place.environment.program("vllm-router"), "--host", "127.0.0.1", "--port", str(port), "--policy", "kv_aware"]
        words += ["--prometheus-port", str(port + 1), "--worker-startup-check-interval", "1", "--kv-event-model", MODEL]
        words += ["--worker-urls", *(replica.url for replica in place.replicas)]
        for replica in place.replicas:
            words += ["--kv-event-source", f"{replica.url}={replica.events}"]
            words += ["--kv-event-replay-source", f"{replica.url}={replica.replay}"]
        return words

    def find_first(self, place: Place, url: str, number: int) -> str:
        """Each replica in turn, past the router: events are all that it has."""
        return place.replicas[number % len(place.replicas)].url


class VllmRouterHandover(VllmRouter):
    """A prefill and a decode server, which share a store on disk."""

    name = "vllm-router-prefill-decode"
    missing = {"warm": ONE, "warm again": ONE}

    def find_options(self, work: Path) -> list[str]:
        return share_store(work)

    def command(self, place: Place, port: int) -> list[str]:
        words = [place.environment.program("vllm-router"), "--host", "127.0.0.1", "--port", str(port)]
        words += ["--prometheus-port", str(port + 1), "--worker-startup-check-interval", "1", "--vllm-pd-disaggregation"]
        words += ["--request-timeout-secs", str(REQUEST_SECONDS)]
        return [*words, "--prefill", place.replicas[0].url, "--decode", place.replicas[1].url]

    def find_roles(self, place: Place) -> dict[str, Process]:
        return dict(zip(("prefill", "decode"), (replica.process for replica in place.replicas), strict=True))


class Smg(Router):
    """smg, the successor of sglang-router."""

    name = "smg"
    packages = ("smg==1.13.0",)
    modules = ("smg",)
    missing = {"warm again": HISTORY}

    def command(self, place: Place, port: int) -> list[str]:
        words = [place.environment.program("smg"), "launch", "--host", "127.0.0.1", "--port", str(port)]
        return [*words, "--prometheus-host", "127.0.0.1", "--prometheus-port", str(port + 1),
                "--policy", "cache_aware", "--worker-urls", *(replica.url for replica in place.replicas)]  # fmt: skip


class ProductionStack(Router):
    """The router of vLLM's production-stack. Its package has the name of another in the registry, so it needs a checkout."""

    name = "production-stack"
    oldest = (3, 12)
    missing = {"warm again": HISTORY}

    def find_source(self) -> str | None:
        if self.checkout is None:
            return f"needs a checkout of its repository: --checkout {self.name}=FOLDER"
        self.packages = (str(self.checkout),)
        return None

    def command(self, place: Place, port: int) -> list[str]:
        words = [place.environment.program("vllm-router"), "--host", "127.0.0.1", "--port", str(port)]
        words += ["--service-discovery", "static", "--routing-logic", "prefixaware"]
        words += ["--static-backends", ",".join(replica.url for replica in place.replicas)]
        return [*words, "--static-models", ",".join(MODEL for _ in place.replicas)]
