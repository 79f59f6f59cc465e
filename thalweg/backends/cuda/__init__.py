"""NVIDIA GPUs: detected, not yet driven. Imports no framework."""

from __future__ import annotations

from thalweg.backends.pending import PendingPlatform


class CudaPlatform(PendingPlatform):
    name = "cuda"
    hardware = "NVIDIA GPU"
    files = ("dev/nvidia[0-9]*",)
