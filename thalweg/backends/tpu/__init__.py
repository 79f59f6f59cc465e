"""Google TPUs: detected, not yet driven. Imports no framework."""

from __future__ import annotations

from thalweg.backends.pending import PendingPlatform


class TpuPlatform(PendingPlatform):
    name = "tpu"
    hardware = "Google TPU"
    files = ("dev/accel[0-9]*",)
    pci = ("0x1ae0", ("0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"))
