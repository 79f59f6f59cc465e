"""Intel GPUs: detected, not yet driven. Imports no framework."""

from __future__ import annotations

from thalweg.backends.pending import PendingPlatform


class XpuPlatform(PendingPlatform):
    name = "xpu"
    hardware = "Intel GPU"
    files = ("sys/bus/pci/drivers/xe/0000:*", "sys/bus/pci/drivers/i915/0000:*")
