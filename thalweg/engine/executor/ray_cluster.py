"""The executor `ray`: rank 0 in the engine's process, and each other rank on the node where Ray places an actor for it.

Ray places and watches. Batches go from rank 0 to the ranks directly, as between machines without Ray. An actor starts its rank
as a child process, which ends with it, and Ray ends the actors of an engine that has ended.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from thalweg import __version__
from thalweg.config import EngineArgs
from thalweg.engine.control.executor import Executor
from thalweg.engine.executor.launcher import Launcher, MeetingFolder, start_rank, with_meeting
from thalweg.engine.executor.member import Member
from thalweg.engine.executor.messages import Hello, Refused
from thalweg.engine.executor.nodes import GREETINGS, INTERFACE, gather, model_digest
from thalweg.engine.executor.processes import open_ranks
from thalweg.engine.ipc.door import Door, connect, free_port, introduce
from thalweg.engine.ipc.port import listen
from thalweg.engine.planning import resolve
from thalweg.errors import ConfigError, DeviceError
from thalweg.hal import discovery
from thalweg.hal.platform import Place
from thalweg.host import envs
from thalweg.host.processes import Process

log = logging.getLogger(__name__)
CPU = "CPU"
NEAR = 0.001
"""Share of a node's own resource, by which rank 0's bundle is placed on the node of this process."""


def open_ray(args: EngineArgs) -> Executor:
    """A rank on each place of a placement group. ConfigError without Ray, DeviceError without a cluster, or room in it."""
    return open_ranks(args, RayLauncher)


class RankActor:
    """On a node of the cluster: the parent of a rank's process."""

    def __init__(self) -> None:
        self._process: Process | None = None

    def list_devices(self) -> list[int]:
        """Numbers of the accelerators that Ray gave this actor."""
        import ray

        return [int(number) for number in ray.get_gpu_ids() if str(number).isdecimal()]

    def start(
        self, host: str, port: int, hello: dict[str, Any], device: str, environment: dict[str, str], seconds: float,
        secret: bytes,
    ) -> None:  # fmt: skip
        """Offer a process of this node to rank 0, which listens at the address. secret: of this run."""
        envs.set_unset(environment)
        until = time.monotonic() + seconds
        with connect(host, port, until, patient=True) as sock:
            answer = introduce(sock, GREETINGS, Hello(**hello), until, secret)
            if isinstance(answer, Refused):
                raise ConfigError(f"rank 0 refused rank {hello['rank']}: {answer.why}")
            self._process = start_rank(device, sock.fileno())


class RayLauncher(Launcher):
    """The other ranks are children of actors."""

    def __init__(self, args: EngineArgs) -> None:
        self._args = args
        self._ray = _import_ray()
        self._lock = threading.Lock()
        self._actors: list[Any] = []
        self._group: Any = None
        self._folder: MeetingFolder | None = None
        platform = discovery.resolve_platform(args.device)
        self._device, self._resource, self._variables = platform.name, platform.ray_resource, platform.variables
        self._connected = not self._ray.is_initialized()
        if self._connected:
            try:
                self._ray.init(address="auto", logging_level=logging.WARNING, log_to_driver=True)
            except ConnectionError as e:
                raise DeviceError(
                    f"device: no Ray cluster runs here ({str(e).splitlines()[0]}); ray start --head, or set RAY_ADDRESS"
                ) from None
        self._host = str(self._ray.util.get_node_ip_address())

    def place(self, places: Sequence[Place]) -> tuple[Place, ...]:
        try:
            return self._place(places)
        except BaseException:
            self.release()
            raise

    def _place(self, places: Sequence[Place]) -> tuple[Place, ...]:
        self._group = self._reserve(len(places))
        nodes = self._find_nodes()
        here = str(self._ray.get_runtime_context().get_node_id())
        first = nodes.pop(0)
        self._bundles = sorted(range(1, len(places)), key=lambda i: (nodes[i - 1] != here, nodes[i - 1]))
        own = self._take_devices() if self._resource != CPU else list(places[0].devices)
        placed = (replace(places[0], devices=tuple(own)), *(replace(p, devices=(0,)) for p in places[1:]))
        if set(nodes) == {first} and first == here:
            self._folder = MeetingFolder()
            return with_meeting(placed, f"file://{self._folder.path}")
        resolve.check_stages_on_one_machine(self._args)
        with listen(self._host, 0) as sock:
            interface = Door(sock).interface
        if interface is not None:
            envs.set_unset({INTERFACE: interface})
        return with_meeting(placed, f"tcp://{self._host}:{free_port(self._host)}")

    def start(self, places: Sequence[Place]) -> list[Member]:
        args, ray = self._args, self._ray
        seconds = args.distributed_timeout_seconds
        digest, environment = model_digest(args), envs.of_ranks(self._variables)
        starts: list[Any] = []
        with listen(self._host, 0) as sock:
            secret = secrets.token_bytes()
            door = Door(sock, secret)
            for place, bundle in zip(places, self._bundles, strict=True):
                hello = {
                    "version": __version__, "rank": place.rank, "world": place.world, "nodes": args.nnodes, "model": args.model,
                    "digest": digest,
                }  # fmt: skip
                actor = self._make_actor(bundle)
                at = (self._host, door.port)
                starts.append(actor.start.remote(*at, hello, self._device, environment, float(seconds), secret))

            def check() -> None:
                done, _ = ray.wait(starts, num_returns=len(starts), timeout=0)
                try:
                    ray.get(done)
                except ray.exceptions.RayError as e:
                    raise DeviceError(f"device: an actor of Ray did not start its rank: {e}") from None

            return gather(args, places, door, time.monotonic() + seconds, self._describe_missing, check)

    def release(self) -> None:
        with self._lock:
            actors, self._actors = self._actors, []
            group, self._group = self._group, None
            connected, self._connected = self._connected, False
        if self._folder is not None:
            self._folder.remove()
        with contextlib.suppress(Exception):  # the cluster may be gone, which is one reason to be here
            for actor in actors:
                self._ray.kill(actor)
            if group is not None:
                self._ray.util.remove_placement_group(group)
            if connected:
                self._ray.shutdown()

    def _reserve(self, ranks: int) -> Any:
        """A placement group with a bundle for each rank. The first is on this node. DeviceError where the cluster has no room
        in time."""
        bundles: list[dict[str, float]] = [{self._resource: 1.0} for _ in range(ranks)]
        bundles[0][f"node:{self._host}"] = NEAR
        group = self._ray.util.placement_group(bundles, strategy="PACK")
        seconds = self._args.distributed_timeout_seconds
        log.info("waiting for room for %d ranks in the Ray cluster", ranks)
        if not group.wait(seconds):
            free = self._ray.available_resources().get(self._resource, 0)
            whole = self._ray.cluster_resources().get(self._resource, 0)
            self._ray.util.remove_placement_group(group)
            raise DeviceError(
                f"device: the Ray cluster had no room for {ranks} ranks within {seconds} s (distributed_timeout_seconds): each "
                f"needs 1 {self._resource}, the first on node {self._host}; {whole:g} are there and {free:g} free"
            )
        return group

    def _find_nodes(self) -> list[str]:
        """The node of each bundle."""
        found = self._ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        return [str(found[i]) for i in range(len(found))]

    def _take_devices(self) -> list[int]:
        """Accelerators of rank 0's bundle, held by an actor so that Ray gives them to nobody else."""
        return list(self._ray.get(self._make_actor(0).list_devices.remote())) or [0]

    def _make_actor(self, bundle: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        needs = {"num_cpus": 1} if self._resource == CPU else {"num_cpus": 0, "num_gpus": 1}
        actor = self._ray.remote(RankActor).options(scheduling_strategy=strategy, max_restarts=0, **needs).remote()
        self._actors.append(actor)
        return actor

    def _describe_missing(self, places: Sequence[Place]) -> str:
        ranks = ", ".join(str(p.rank) for p in places)
        return (
            f"{ranks} of {places[0].world} did not come from their nodes to {self._host} within "
            f"{self._args.distributed_timeout_seconds} s (distributed_timeout_seconds)"
        )


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ConfigError("distributed_executor_backend: ray is not installed; pip install 'thalweg[ray]'") from None
    import ray.util.placement_group

    return ray
