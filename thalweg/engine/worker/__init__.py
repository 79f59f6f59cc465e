"""The worker: build a model on a device, size its cache, compile its step, run it. It has the only model runner.

Knows no backend by name: the entry point that the user's `device` names is driven through `hal.platform`.
"""
