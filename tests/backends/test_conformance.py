"""The conformance kit: it passes on the platforms of this package, and it fails where a backend is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from thalweg.backends.eager import EagerDevice
from thalweg.backends.torch_native import ATTENTION, KERNELS
from thalweg.backends.torch_native import attention as torch_attention
from thalweg.backends.torch_native.attention import TorchPagedAttention
from thalweg.hal import ops
from thalweg.hal.device import DeviceInfo
from thalweg.hal.op import Kernel
from thalweg.hal.testing import conftest as kit
from thalweg.hal.testing import test_attention as attention_kit
from thalweg.hal.testing import test_ops as ops_kit

INFO = DeviceInfo("test", "test", 1 << 30, 1, ("float32",))


def _kit(*args: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "thalweg.hal.testing.options", "--pyargs", "thalweg.hal.testing", *args]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return done.stdout


HOST_GPU = "thalweg.backends.torch_gpu.testing:HostGpuPlatform"
NIGHTLY = [("reference", "1/1"), ("cpu", "1/3"), ("cpu", "3/3"), (HOST_GPU, "1/3"), (HOST_GPU, "2/3")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platform", "part"),
    [("null", "1/1"), ("cpu", "2/3"), (HOST_GPU, "3/3"), *(pytest.param(*c, marks=pytest.mark.nightly) for c in NIGHTLY)],
    ids=lambda p: p.split(":")[-1],
)
def test_every_platform_of_this_package_passes(platform: str, part: str) -> None:
    _kit(f"--platform={platform}", "-q", "--part", part)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "cases"),
    [
        pytest.param("xla", "test_ops or test_device", marks=pytest.mark.nightly),
        ("xla", "xla-window-bfloat16-16 or padding and xla-gqa-float32"),
        ("pallas", "ragged-window-bfloat16-8"),
    ],
)
def test_the_compiled_platform_passes_on_the_host(attention: str, cases: str, tmp_path: Path) -> None:
    """All of its cases are minutes: `pytest --pyargs thalweg.hal.testing --platform=tpu --platform-options '{...}'`."""
    options = {"jax_platform": "cpu", "attention": attention, "compilation_cache": str(tmp_path)}
    _kit("--platform=tpu", "--platform-options", json.dumps(options), "-q", "-p", "no:timeout", "-k", cases)


@pytest.mark.slow
def test_parts_are_every_chosen_test_once() -> None:
    def tests(*args: str) -> list[str]:
        out = _kit("--platform=null", "--collect-only", "-k", "test_device and not memory", *args)
        return sorted(line for line in out.splitlines() if "::" in line)

    parts = [tests("--part", f"{i}/2") for i in (1, 2)]
    assert all(parts)
    assert sorted(t for part in parts for t in part) == tests()


@pytest.mark.parametrize("part", ["0/2", "3/2", "2", "a/b"])
def test_a_part_that_is_none_is_refused(part: str) -> None:
    config = SimpleNamespace(getoption=lambda name, default: part)
    with pytest.raises(pytest.UsageError, match="--part: "):
        kit._part(config)


@pytest.mark.slow
def test_the_command_line_selects_platform_and_cases() -> None:
    assert "passed" in _kit("--platform=null", "-k", "memory", "-p", "no:cacheprovider", "-v")


def _case(run: Callable[..., Any], name: str, **claims: bool) -> tuple[EagerDevice, Any]:
    op = ops.all_ops()[name]
    kernel = Kernel(name, "suspect", run, **claims)
    return EagerDevice(INFO, [kernel], ATTENTION), (op, op.samples[1], "float32", kernel)


def test_a_kernel_with_a_wrong_result_is_found() -> None:
    device, case = _case(lambda x, weight, *, eps: ops.rms_norm(x, weight, eps=eps) * 1.0001, "rms_norm")
    with pytest.raises(AssertionError, match=r"rms_norm.*suspect"):
        ops_kit.test_kernel_gives_what_the_reference_body_gives(device, case)


def test_a_false_claim_of_batch_invariance_is_found() -> None:
    def depends(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
        return ops.rms_norm(x, weight, eps=eps) + 1e-6 * x.shape[0]

    device, case = _case(depends, "rms_norm", batch_invariant=True)
    with pytest.raises(AssertionError, match="rows"):
        ops_kit.test_a_row_is_the_same_bits_in_any_batch(device, case)


def test_attention_that_reads_what_an_earlier_owner_left_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_attention, "_false_runs", lambda flags: ())
    device = EagerDevice(INFO, KERNELS, ATTENTION)
    with pytest.raises(AssertionError):
        attention_kit.test_mixed_batch_equals_dense_attention_whatever_the_blocks_held_before(
            device, TorchPagedAttention(), attention_kit.SPECS["gqa"], "float32", 16
        )
