"""The hardware contract: everything a backend must supply, and nothing about any one device.

Read in this order: `step` (the only data that crosses to a device), `platform` and `device` (what a backend is), `op` (how a
kernel is chosen), `attention` and `kv` (how the cache is laid out), `comm` (collectives inside a step).
Only `hal.ops` (reference bodies) and `hal.testing` (the conformance kit) may import a tensor framework.
"""

HAL_API = 2
"""Version of the contract. A platform built for another version is refused at discovery, with both numbers."""
