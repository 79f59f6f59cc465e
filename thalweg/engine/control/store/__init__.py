"""KV blocks beyond the device: stores that keep them, and the traffic between a store and the cache.

`base` is the contract of a store, `host` the one in host memory, `lanes` the threads that call a store. `departures` and
`arrivals` are the two directions, `transfers` drives both, and `mover` copies blocks out of the device. `thalweg.kv_stores`
lists the stores, and those of installed packages.
"""
