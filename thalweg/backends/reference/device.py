"""The reference device: torch on the host, no kernels, state returned as new tensors."""

from __future__ import annotations

from thalweg.backends.eager import EagerDevice
from thalweg.backends.host import cores, cpu_name, host_memory
from thalweg.backends.reference.attention import ReferenceAttention
from thalweg.hal.platform import DeviceInfo


def open_device() -> EagerDevice:
    info = DeviceInfo(cpu_name(), "reference", host_memory()[0], cores(), ("float32", "bfloat16"))
    return EagerDevice(info, kernels=(), attention=(ReferenceAttention(),))
