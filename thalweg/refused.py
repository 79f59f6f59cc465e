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
WEIGHTS = "an LLM keeps its weights: make a new one of the new checkpoint, or use AsyncLLM with weight_transfer_config"


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


_LOSSY = "it accepts drafts that the model would not sample, so the text would change"
_PLACE = "the drafter runs inside the model's step, on its devices, with its caches and kernels"
SPECULATIVE_FIELDS = {
    "code_revision": "no code of a checkpoint is run",
    "draft_lm_head_quantization": "drafters are read as their checkpoints store them",
    "draft_load_config": "the drafter is loaded as --load-format says",
    "draft_tensor_parallel_size": _PLACE,
    "dspark_draft_topk": "a draft of dspark is chosen among all tokens",
    "enable_adaptive_verification": "the confidence head of dspark is not read: the engine measures how many drafts pay",
    "fly_entropy_threshold": _LOSSY,
    "fly_window_size": _LOSSY,
    "kv_cache_dtype": "this method has no layers, and so no cache",
    "max_model_len": _PLACE,
    "parallel_drafting": "only eagle3 and peagle read it: draft models that were trained for it (PARD) are not implemented",
    "quantization": "only methods with a checkpoint (model) read it; the module of mtp is quantised as the target is",
    "synthetic_acceptance_length": _LOSSY,
    "synthetic_acceptance_rates": _LOSSY,
    "tensor_parallel_size": _PLACE,
    "use_heterogeneous_vocab": "a draft model needs the target's tokenizer",
    "xpress_topc": "the method xpress is not implemented",
}
"""Fields of vLLM's speculative_config that this version refuses, and why. Null, false and 1 rank are accepted."""
SPECULATIVE_HINTS = frozenset((
    "attention_backend", "disable_eagle_block_drop", "disable_lookahead_block_hashes", "disable_padded_drafter_batch",
    "enforce_eager", "index_share_for_mtp_iteration", "moe_backend", "use_local_argmax_reduction",
))  # fmt: skip
"""Fields of the same that choose how vLLM computes drafts. They are accepted, and change nothing here."""
SPECULATIVE_METHODS = {
    "custom_class": 'install a package with an entry point of the group thalweg.drafters, and name it as "method"',
    "extract_hidden_states": "it drafts nothing",
    "medusa": "vLLM removed it too; use eagle3 or mtp if there is a checkpoint for the model, or suffix",
    "mlp_speculator": "vLLM removed it too; use eagle3 or mtp if there is a checkpoint for the model, or suffix",
    "xpress": "it is not implemented; use eagle3 or mtp if there is a checkpoint for the model, or suffix",
}
"""Methods of vLLM and of `speculators` that this version refuses, and why."""
SAMPLE_METHODS = {"standard": "", "block": "", "fly": _LOSSY, "synthetic": _LOSSY, "probabilistic": "", "strict": ""}
"""Values of rejection_sample_method -> why they are refused. Acceptance is exact here, so the others are the same."""
