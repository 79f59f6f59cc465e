"""Shared code of the torch accelerators: the device, streams, staging, graphs, and the rules of a GPU platform.

`cuda`, `rocm` and `xpu` add only facts, preferences and vendor kernels. `platform` and `arch` import no torch, so that probing
stays free of torch. The other modules of this package say whether they do.
"""
