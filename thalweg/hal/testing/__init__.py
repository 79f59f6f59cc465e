"""The conformance kit: the acceptance test of any backend, in or out of tree.

    pytest --pyargs thalweg.hal.testing --platform=NAME [--platform-options JSON] [--mode test|perf|support] [--part I/N]

test: every kernel against the reference body of its op, attention against a dense formula, the device's promises.
perf: median times, one JSON line each. support: the support matrix, in Markdown.
--part: every N-th of the chosen tests, from the I-th on, where one run is too long.

The kit uses nothing of a backend but the contract: arrays go in by `put`, work runs by `compile`, results come out of
`Pending.result`.
"""
