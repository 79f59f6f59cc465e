"""AMD GPUs: detected, not yet driven. Imports no framework."""

from __future__ import annotations

from thalweg.backends.pending import PendingPlatform


class RocmPlatform(PendingPlatform):
    name = "rocm"
    hardware = "AMD GPU"
    files = ("dev/kfd",)
