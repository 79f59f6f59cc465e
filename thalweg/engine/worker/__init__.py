"""The worker: build a model on a device, size its cache, compile its step, run it. The one model runner there is.

Knows no backend by name: whatever entry point the user's `device` names is driven through `hal.platform`.
"""
