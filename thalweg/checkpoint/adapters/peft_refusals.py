"""Variants of peft's adapters that are not served, each with the way to make it one that is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thalweg.errors import UnsupportedModelError

MERGE = "merge it into the base model (peft: merge_and_unload) and serve the result"
CONVERT = (
    "convert the adapter to a plain one (peft: save_pretrained(..., path_initial_model_for_weight_conversion=...) with the "
    "adapter as it was before training)"
)
RETRAIN = "peft cannot merge it; train a plain LoRA adapter"
TYPES: Mapping[str, str] = {
    "ADALORA": "its ranks are pruned singular values (lora_E)",
    "BOFT": "it rotates the base weight",
    "IA3": "it scales activations",
    "LOHA": "its change is a Hadamard product (hada_w)",
    "LOKR": "its change is a Kronecker product (lokr_w)",
    "OFT": "it rotates the base weight (oft_R)",
    "VERA": "it shares random matrices (vera_lambda)",
}
"""peft_type -> the reason. Others are named without one."""
FIELDS: Mapping[str, tuple[str, str]] = {
    "trainable_token_indices": ("single rows of the embedding are trained", MERGE),
    "layer_replication": ("layers of the base model are repeated", MERGE),
    "alora_invocation_tokens": ("it acts from certain tokens on (aLoRA)", RETRAIN),
    "use_qalora": ("inputs are pooled first", MERGE),
    "use_bdlora": ("its matrices are block-diagonal", MERGE),
    "arrow_config": ("several adapters are routed", RETRAIN),
    "kasa_config": ("singular values of the base model are changed", MERGE),
    "velora_config": ("another kind of adapter", MERGE),
    "monteclora_config": ("another kind of adapter", MERGE),
    "megatron_config": ("it is of a model that is divided already", MERGE),
}
"""Fields that must be empty -> (their meaning, the remedy)."""
INITS = (None, True, False, "gaussian", "eva", "orthogonal", "mica", "lora_ga")
"""Values of init_lora_weights that do not change the base model."""
CHANGED: Mapping[str, tuple[str, str]] = {
    "pissa": ("PiSSA takes the principal part out of the base weight", CONVERT),
    "olora": ("OLoRA subtracts its start from the base weight", CONVERT),
    "corda": ("CorDA takes a part out of the base weight", CONVERT),
    "loftq": ("LoftQ replaces the base weight by a quantised one", MERGE),
}
"""The first word of init_lora_weights -> (the change of the base model, the remedy)."""
USES = ("use_rslora", "use_dora")
"""Fields use_* that are served."""


def check_kind(file: Path, settings: Mapping[str, Any]) -> None:
    """UnsupportedModelError names the field of a variant that is not served, the reason and the remedy."""
    if (kind := settings.get("peft_type", "LORA")) != "LORA":
        why = f": {TYPES[kind]}" if isinstance(kind, str) and kind in TYPES else ""
        raise UnsupportedModelError(f"{file}: peft_type: {kind!r:.80} is not served, LORA only{why}; {MERGE}")
    for key, (why, remedy) in FIELDS.items():
        if settings.get(key):
            raise UnsupportedModelError(f"{file}: {key}: {why}, which is not served; {remedy}")
    init = settings.get("init_lora_weights", True)
    if init not in INITS:
        why, remedy = CHANGED.get(str(init).partition("_")[0], ("", CONVERT))
        raise UnsupportedModelError(
            f"{file}: init_lora_weights: {init!r:.80} changes the base model too{why and f': {why}'}; {remedy}"
        )
    if unknown := next((k for k, v in settings.items() if k.startswith("use_") and v and k not in USES), None):
        raise UnsupportedModelError(f"{file}: {unknown[:80]}: unknown to this version; {MERGE}")
