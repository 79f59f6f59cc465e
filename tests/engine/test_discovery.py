"""Finding platforms: the best that can run is taken, what cannot says why, and a bad one among them harms nobody."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint

import pytest

from thalweg.errors import DeviceError
from thalweg.hal import HAL_API, discovery
from thalweg.hal.device import Device, DeviceInfo
from thalweg.hal.platform import Defaults, ModelInfo, Place, Platform, Probe


class Made(Platform):
    """What the subclasses below vary."""

    score, reason = 0, "absent"

    def probe(self) -> Probe:
        return Probe(self.score, self.reason)

    def defaults(self, model: ModelInfo, device: DeviceInfo) -> Defaults:
        return Defaults()

    def open(self, place: Place) -> Device:
        raise NotImplementedError


class Good(Made):
    name, score, reason = "good", 10, "a good one"


class Better(Made):
    name, score, reason = "better", 20, "a better one"


class Absent(Made):
    name, reason = "absent", "none of its kind found; install one"


class Future(Made):
    name, score, api = "future", 99, HAL_API + 1


class Broken(Made):
    name = "broken"

    def probe(self) -> Probe:
        raise OSError("half a library")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def install(*kinds: type[Platform]) -> None:
        points = [EntryPoint(k.name, f"{__name__}:{k.__name__}", discovery.GROUP) for k in kinds]
        monkeypatch.setattr(EntryPoint, "load", lambda self: globals()[self.value.partition(":")[2]])
        monkeypatch.setattr(discovery, "entry_points", lambda group: points)

    return install


def test_auto_takes_the_highest_score_of_those_that_can_run(installed: Callable[..., None]) -> None:
    installed(Good, Better, Absent, Broken, Future)
    assert discovery.choose("auto").name == "better"
    assert discovery.choose("good").name == "good"


def test_auto_never_takes_one_that_says_no_and_tells_every_reason(installed: Callable[..., None]) -> None:
    installed(Absent, Broken)
    with pytest.raises(DeviceError, match=r"absent: none of its kind found; install one; broken: .*half a library"):
        discovery.choose("auto")
    installed()
    with pytest.raises(DeviceError, match="no platform is installed"):
        discovery.choose("auto")


def test_one_that_says_no_is_refused_by_name_with_its_own_words(installed: Callable[..., None]) -> None:
    installed(Good, Absent)
    with pytest.raises(DeviceError, match=r"'absent' cannot run on this machine: none of its kind found; install one"):
        discovery.choose("absent")
    with pytest.raises(DeviceError, match=r"unknown platform 'gone'; installed: absent, good"):
        discovery.choose("gone")


def test_another_version_of_the_contract_is_refused_with_both_numbers(installed: Callable[..., None]) -> None:
    installed(Good, Future)
    with pytest.raises(DeviceError, match=rf"'future' is built for contract version {HAL_API + 1}, this engine has {HAL_API}"):
        discovery.load("future")
    assert discovery.probe_all()["future"].score == 0


def test_one_that_does_not_load_says_so_in_the_list(installed: Callable[..., None]) -> None:
    installed(Good, Broken)
    probes = discovery.probe_all()
    assert probes["good"].score == 10
    assert (probes["broken"].score, probes["broken"].reason) == (0, "does not load: OSError: half a library")
