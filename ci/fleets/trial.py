"""A fleet on trial: its environment is made, its processes run, and its claims are shown."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import CalledProcessError

from fleets.claims import Trial
from fleets.fleet import Environment, Fleet, Place, Replica
from fleets.processes import FleetError


def judge(
    fleet: Fleet,
    claims: Sequence[str],
    environments: Path | None,
    *,
    environment: Environment | None = None,
    keep: bool = False,
) -> dict[str, str]:
    """Of each claim: "" if it holds, "- reason" if this fleet cannot show it, else why it does not hold.

    environments: a folder in which environments stay. None: a temporary one. environment: one that has the fleet already.
    keep: keep the logs."""
    missing = {claim: f"- {why}" for claim, why in fleet.missing.items()}
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="fleets-"))
        if keep:
            print(f"{fleet.name}: logs in {folder}", file=sys.stderr)
        else:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            found = environment or make_environment(fleet, environments or folder)
            if isinstance(found, str):
                return dict.fromkeys(claims, f"- {found}")
            with run(fleet, Place(found, folder)) as trial:
                return {claim: missing.get(claim) or trial.show(claim) for claim in claims}
        except (FleetError, CalledProcessError) as e:
            return {claims[0]: str(e), **dict.fromkeys(claims[1:], "it does not run")}


def make_environment(fleet: Fleet, folder: Path) -> Environment | str:
    """The environment, made now if it is not there, or why there is none."""
    if (reason := fleet.find_source()) is not None:
        return reason
    python = sys.executable
    if sys.version_info < fleet.oldest:
        python = shutil.which(f"python{fleet.oldest[0]}.{fleet.oldest[1]}") or ""
        if not python:
            return f"needs Python {fleet.oldest[0]}.{fleet.oldest[1]}"
    environment = Environment(folder / fleet.name)
    if not (environment.folder / "done").exists():
        environment.make(python, fleet.packages, fleet.bare, shared=fleet.shared)
        (environment.folder / "done").touch()
    return environment


@contextmanager
def run(fleet: Fleet, place: Place) -> Iterator[Trial]:
    """The fleet, and a server that has the direct answers: the first behind it, or one by itself."""
    with ExitStack() as stack:
        servers, options = [], fleet.find_options(place.work)
        for _ in range(max(fleet.replicas, 1)):
            servers.append(Replica.start(place.work, *options))
            stack.callback(servers[-1].process.end)
        for server in servers:
            server.process.wait_for(f"{server.url}/readyz")
        place.replicas = servers[: fleet.replicas]
        stack.callback(fleet.end)
        yield Trial(fleet, place, fleet.start(place), servers[0].url)
