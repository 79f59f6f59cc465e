"""Methods of vLLM's API that this version does not support. Calling one raises NotSupportedError with the reason and the
remedy, instead of an AttributeError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg.errors import NotSupportedError

CODE = "no code of yours runs inside the engine: results come as outputs and get_metrics(), weights as files"
CONFIG = "there is no VllmConfig: settings are EngineArgs; use from_engine_args"
EXTERNAL = "a store in host memory is cleared with the prefix cache, and a shared store is not; leave it out"
TRACES = "trace_headers: the server exports traces (--otlp-traces-endpoint), an engine in a program none; leave it out"
WEIGHTS = "weights are not changed in a running engine by this version: make a new one of the new checkpoint"


def unsupported_method(why: str) -> Callable[..., Any]:
    """A method that raises NotSupportedError with its name. `__refused__` is the reason."""

    class RefusedAttribute:
        __refused__ = why
        name = ""

        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, instance: object, owner: type) -> RefusedAttribute:
            return self

        def __call__(self, *_: Any, **__: Any) -> Any:
            raise NotSupportedError(f"{self.name}: {why}")

    return RefusedAttribute()


class NoVllmConfig:
    """Creating engines from vLLM's configuration object."""

    from_vllm_config = unsupported_method(CONFIG)


class NoWorkerCalls:
    """Running functions in vLLM's workers."""

    collective_rpc = unsupported_method(CODE)
    apply_model = unsupported_method(CODE)


class NoWeightUpdates:
    """Receiving weights from a trainer."""

    init_weight_transfer_engine = unsupported_method(WEIGHTS)
    start_weight_update = unsupported_method(WEIGHTS)
    update_weights = unsupported_method(WEIGHTS)
    finish_weight_update = unsupported_method(WEIGHTS)
