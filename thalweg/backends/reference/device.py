"""The reference device: torch on the host, no kernels, state returned as new tensors."""

from __future__ import annotations

from thalweg.backends.eager import EagerDevice
from thalweg.backends.reference import ReferencePlatform
from thalweg.backends.reference.attention import ReferenceAttention
from thalweg.backends.reference.encoder import ReferenceEncoderAttention


def open_device() -> EagerDevice:
    return EagerDevice(
        ReferencePlatform().describe(), kernels=(), attention=(ReferenceAttention(), ReferenceEncoderAttention())
    )
