"""What the TPU platform says of machines nobody has here: which TPU, what is missing, what fits. Facts are injected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tpu_steps import LLAMA_8B

from thalweg.backends import tpu
from thalweg.backends.tpu import TpuOptions, TpuPlatform
from thalweg.backends.tpu.kinds import KINDS
from thalweg.config import EngineArgs
from thalweg.engine.planning.memory import Plan, plan
from thalweg.errors import DeviceError
from thalweg.hal.platform import Place

ALL = {"torch": "2.13.0+cpu", "jax": "0.10.2", "torchax": "0.0.14.dev20260814", "libtpu": "0.0.42"}


def card(root: Path, device: str, address: str = "0000:00:05.0") -> None:
    for name, value in (("vendor", "0x1ae0"), ("device", device)):
        (root / "sys/bus/pci/devices" / address).mkdir(parents=True, exist_ok=True)
        (root / "sys/bus/pci/devices" / address / name).write_text(value + "\n")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Packages and their versions, to be changed by a test."""
    there = dict(ALL)
    monkeypatch.setattr(tpu, "find_spec", lambda name: object() if name in there else None)
    monkeypatch.setattr(tpu, "version", lambda name: there[name])
    return there


def refusal(platform: TpuPlatform, options: TpuOptions) -> str:
    """What probe says, which is what `open` says, in one line."""
    platform = platform.with_options(options)
    probe = platform.probe()
    assert probe.score == 0
    with pytest.raises(DeviceError) as e:
        platform.open(Place())
    assert probe.reason in str(e.value)
    assert "\n" not in str(e.value)
    return str(e.value)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda k: k.name)
def test_each_generation_is_known_by_its_card(kind: Any, tmp_path: Path, installed: dict[str, str]) -> None:
    card(tmp_path, "0x0042")  # the vendor's network card
    assert TpuPlatform(tmp_path).describe() is None
    card(tmp_path, kind.pci, "0000:00:06.0")
    probe, info = TpuPlatform(tmp_path).probe(), TpuPlatform(tmp_path).describe()
    assert (probe.score, f"TPU {kind.name} found (0000:00:06.0)" in probe.reason) == (100, True)
    assert info is not None
    assert (info.name, info.memory_bytes, info.dtypes[0]) == (kind.device_kind, kind.memory_bytes, "bfloat16")


def test_what_is_missing_or_of_another_version_is_said_with_the_remedy(tmp_path: Path, installed: dict[str, str]) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/accel0").touch()
    platform = TpuPlatform(tmp_path)
    assert "/dev/accel0" in platform.probe().reason
    for name in ALL:
        del installed[name]
        remedy = "pip install 'jax[tpu]'" if name == "libtpu" else "pip install 'thalweg[tpu]'"
        said = refusal(platform, TpuOptions())
        assert "/dev/accel0" in said
        assert f"{'' if name == 'libtpu' else 'not installed: '}{name}" in said
        assert remedy in said
        installed[name] = ALL[name]
    for name, old in (("jax", "0.4.38"), ("jax", "0.12.0"), ("torchax", "0.0.13"), ("torch", "2.9.1")):
        installed[name] = old
        assert f"{name} {old} is installed, and this needs" in refusal(platform, TpuOptions())
        assert f"{name} {old}" in refusal(platform, TpuOptions(jax_platform="cpu"))
        installed[name] = ALL[name]
    assert platform.probe().score == 100


def test_an_absent_device_is_said_with_the_way_to_try_it(tmp_path: Path, installed: dict[str, str]) -> None:
    assert "no Google TPU found (no /dev/accel[0-9]*" in refusal(TpuPlatform(tmp_path), TpuOptions())
    assert '--additional-config \'{"jax_platform": "cpu"}\'' in refusal(TpuPlatform(tmp_path), TpuOptions())


def planned(path: Path, options: dict[str, str], **fields: Any) -> Plan:
    (path / "config.json").write_text(json.dumps(LLAMA_8B))
    args = {"dtype": "bfloat16", "load_format": "dummy", "max_model_len": 4096, **fields}
    return plan(EngineArgs(model=str(path), device="tpu", additional_config=options, **args))


def test_memory_is_planned_for_a_generation_that_is_not_here(tmp_path: Path) -> None:
    small = planned(tmp_path, {"kind": "v5e"})
    assert not small.fits
    assert "weights 14.96 GiB" in small.problems[0]
    assert "too little" in small.problems[0]
    four = planned(tmp_path, {"kind": "v5e"}, tensor_parallel_size=4)
    assert (four.fits, four.devices, four.kv_per_token * 4) == (True, 4, small.kv_per_token)
    assert four.weights < small.weights / 3.9
    large = planned(tmp_path, {"kind": "v7x"})
    assert large.fits
    assert large.tokens > planned(tmp_path, {"kind": "v6e"}).tokens > 0


def test_what_cannot_be_planned_for_is_said_with_the_way_to_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TpuPlatform, "describe", lambda self: None)
    with pytest.raises(DeviceError, match=r"cannot be planned for: no Google TPU.*\"kind\": \"v5e\".*v4, v5e, v5p, v6e, v7x"):
        planned(tmp_path, {})


def test_kinds_that_are_none_or_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="kind must be one of v4, v5e, v5p, v6e, v7x, not 'v99'"):
        planned(tmp_path, {"kind": "v99"})
    with pytest.raises(DeviceError, match="kind v6e is no host"):
        TpuPlatform().with_options(TpuOptions(jax_platform="cpu", kind="v6e")).open(Place())
    assert planned(tmp_path, {"jax_platform": "cpu"}, max_model_len=64).platform == "tpu"
