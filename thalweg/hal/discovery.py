"""Finding platforms: entry points of the group `thalweg.platforms`. Listing them imports no framework and no driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import metadata
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

from thalweg.errors import DeviceError
from thalweg.hal import HAL_API

if TYPE_CHECKING:  # every command begins by listing names
    from thalweg.hal.platform import Platform, Probe

GROUP = "thalweg.platforms"


@cache
def _everything() -> Any:
    """Entry points of all installed packages. Reading them is as slow as importing a platform, so it is done once."""
    return metadata.entry_points()


def entry_points(group: str) -> Iterable[EntryPoint]:
    """Of all installed packages, as they were when a process first asked for any."""
    found: Iterable[EntryPoint] = _everything().select(group=group)
    return found


def names() -> list[str]:
    """Names of every installed platform, in or out of tree."""
    return sorted(_platform_entry_points())


def _platform_entry_points() -> dict[str, EntryPoint]:
    """By name."""
    return {e.name: e for e in entry_points(group=GROUP)}


def load(name: str) -> Platform:
    """The platform called `name`. "package.module:Class" is one not installed, in development or in a test. DeviceError names
    the installed ones, or the contract version that does not fit."""
    if ":" in name:
        return _written_out(name)
    return _load(name, _platform_entry_points())


def resolve_platform(device: str) -> Platform:
    """The platform that `--device device` means, whether or not this machine can run it. DeviceError as of `load`, `choose`."""
    return choose("auto") if device == "auto" else load(device)


def _load(name: str, found: Mapping[str, EntryPoint]) -> Platform:
    if name not in found:
        raise DeviceError(f"device: unknown platform {name!r}; installed: {', '.join(sorted(found)) or 'none'}")
    platform: Platform = found[name].load()()
    if platform.api != HAL_API:
        raise DeviceError(f"device: platform {name!r} is built for contract version {platform.api}, this engine has {HAL_API}")
    return platform


def _written_out(name: str) -> Platform:
    try:
        platform: Platform = EntryPoint(name, name, GROUP).load()()
    except (ImportError, AttributeError) as e:
        raise DeviceError(f"device: {name!r} does not load: {e}") from e
    return platform


def probe_all() -> dict[str, Probe]:
    """Each platform's own answer to "can this machine run you?". One that fails to load answers no, with the error."""
    from thalweg.hal.platform import Probe

    out: dict[str, Probe] = {}
    found = _platform_entry_points()
    for name in sorted(found):
        try:
            out[name] = _load(name, found).probe()
        except Exception as e:  # an out-of-tree platform must not break the listing
            out[name] = Probe(0, f"does not load: {type(e).__name__}: {e}")
    return out


def choose(name: str, configure: Callable[[Platform], Platform] = lambda p: p) -> Platform:
    """`auto` = the highest probe score above 0. Any other name = that platform, if its probe says yes. configure:
    gives a platform the knobs the user set for it."""
    if name != "auto":
        platform = configure(load(name))
        probe = platform.probe()
        if probe.score <= 0:
            raise DeviceError(f"device: {name!r} cannot run on this machine: {probe.reason}")
        return platform
    probes = probe_all()
    best = max(probes, key=lambda n: probes[n].score, default=None)
    if best is None or probes[best].score <= 0:
        reasons = "; ".join(f"{n}: {p.reason}" for n, p in probes.items()) or "no platform is installed"
        raise DeviceError(f"device: no platform can run on this machine ({reasons})")
    return configure(load(best))
