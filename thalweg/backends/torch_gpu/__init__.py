"""What every torch accelerator shares: the device, streams, staging, graphs, communicator, and the rules of a GPU platform.

`cuda`, `rocm` and `xpu` add facts, preferences and vendor kernels; nothing else. This package's own modules say which of
them import torch: `platform` and `arch` do not, so that probing stays free of it.
"""
