"""KV blocks beyond the device: stores that keep them, and the traffic between a store and the cache.

`base` is the contract of a store, `host` the one in host memory, `lanes` the threads that call a store. `departures` and
`arrivals` are the two directions, and `transfers` drives both.

A store may come from outside the repository: an installed package names it in the entry points of the group
`thalweg.kv_stores` ("NAME = package.module:Class"), and `kv_transfer_config` names it as its `kv_connector`.
"""

from __future__ import annotations

from thalweg.plugins import OpenList

_HOST = "thalweg.engine.control.store.host:HostStore"
STORES = OpenList("thalweg.kv_stores", {"OffloadingConnector": _HOST, "host": _HOST})
"""`kv_connector` -> "module:class", a `base.Store`."""
