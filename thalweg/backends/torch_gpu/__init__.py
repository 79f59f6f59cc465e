"""What every torch accelerator shares: the device, streams, staging, graphs, communicator, and the rules of a GPU
platform.

`cuda`, `rocm` and `xpu` add only facts, preferences and vendor kernels. `platform` and `arch` import no torch, so
that probing stays free of it. The other modules of this package say whether they do.
"""
