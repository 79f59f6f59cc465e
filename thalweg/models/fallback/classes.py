"""Classes of transformers: found by name, and built on the meta device, with real values for the buffers that they compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from thalweg.checkpoint.config import architecture
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.fallback import attention, experts, masks

OURS = (
    "pooling", "model_impl", "quantization_config", "auto_map", "attn_implementation", "_attn_implementation",
    "experts_implementation", "_experts_implementation",
)  # fmt: skip
"""Keys of a configuration that were put there by this engine, are refused before, or are not the file's to say: which code
runs."""
CHANGING = ("dynamic", "longrope")
"""Rotary positions with frequencies that follow the longest sequence in the batch. Here they follow the longest served."""
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class MetaModel:
    """A model without memory: its parameters are on the meta device."""

    model: Any
    computed: Mapping[str, Tensor]
    """Buffers that no checkpoint holds, as the class computes them, on the host."""

    @property
    def base(self) -> Any:
        """The model without its head."""
        return self.model.base_model


def causal_lm_classes() -> set[str]:
    """Names of transformers' classes that generate text."""
    found: set[str] = set()
    for value in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        found.update([value] if isinstance(value, str) else value)
    return found


def class_name(name: str) -> str:
    """The class of transformers that published files mean by a name: some write MoE where it writes Moe."""
    return next((each for each in causal_lm_classes() if each.lower() == name.lower()), name)


def causal_lm_class(config: Mapping[str, Any]) -> str:
    """The class of transformers that generates text for the configuration's `model_type`."""
    kind = config.get("model_type")
    found = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind) if isinstance(kind, str) else None
    if not found:
        raise CheckpointError(
            f"config.json: model_type: {kind!r:.80} means no class of transformers {transformers.__version__} that generates "
            f"text, and {architecture(config)} in architectures names none: name the model's own class there"
        )
    return found if isinstance(found, str) else str(found[0])


def find(name: str) -> type[PreTrainedModel]:
    """LookupError, in words, if transformers has no class of this name that generates text."""
    name = class_name(name)
    if name not in causal_lm_classes():
        raise LookupError(f"transformers {transformers.__version__} has no class of this name that generates text either")
    if name.endswith("ForConditionalGeneration"):
        raise UnsupportedModelError(
            f"config.json: architectures: {name}: the fallback to transformers only serves text-only models, and this one has "
            "several modalities"
        )
    found: type[PreTrainedModel] = getattr(transformers, name)
    return found


def make(config: Mapping[str, Any], dtype: str, length: int = 0) -> MetaModel:
    """The model of a config.json. length: of the longest sequence served; 0 = the model's maximum. CheckpointError where the
    class rejects the configuration."""
    architecture = str(config["architectures"][0])
    kind = find(architecture)
    attention.register()
    masks.register()
    values = {key: _plain(value) for key, value in config.items() if key not in OURS}
    before = torch.get_default_dtype()
    try:
        settings: Any = kind.config_class.from_dict(values)  # type: ignore[union-attr]
        settings._attn_implementation = attention.PROBED
        settings.use_cache = False
        if getattr(settings, "output_router_logits", False):
            settings.output_router_logits = False
        torch.set_default_dtype(_DTYPES[dtype])
        with torch.device("meta"):
            model = kind(settings)
    except Exception as e:  # whatever a class says of settings that it does not take
        if attention.PROBED in str(e):
            raise UnsupportedModelError(
                f"{architecture}: the fallback to transformers does not serve it: its attention cannot be exchanged"
            ) from e
        raise CheckpointError(f"config.json: {architecture} of transformers does not take it: {_line(e)}") from e
    finally:
        torch.set_default_dtype(before)
    model.eval()  # type: ignore[no-untyped-call]
    for part in [model.config, model.config.get_text_config()]:
        vars(part)["pad_token_id"] = None  # else some classes look for it among the tokens of every step
    experts.exchange(model)
    computed = _compute_buffers(model, architecture)
    computed |= _freeze_rope(model, length)
    return MetaModel(model, computed)


def head_alone(model: Any) -> nn.Module:
    """A model's head with its surroundings: called with `inputs_embeds`, the hidden states [1, N, hidden], it gives an output
    with `logits`. Scales and caps of logits are those of the class."""
    alone = object.__new__(type(model))
    alone.__dict__ = dict(model.__dict__)
    alone._modules = dict(model._modules)
    if model.base_model_prefix not in alone._modules:
        raise UnsupportedModelError(f"{type(model).__name__}: its head cannot be separated from the rest")
    alone._modules[model.base_model_prefix] = _Given(alone._modules[model.base_model_prefix])
    return alone  # type: ignore[no-any-return]


class _Given(nn.Module):
    """Replaces a headless model, and models that it contains: returns its input."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        for name, child in base.named_children():
            if isinstance(child, PreTrainedModel):
                setattr(self, name, _Given(child))

    def forward(self, *args: Any, inputs_embeds: Any = None, **values: Any) -> Any:
        return _Output(inputs_embeds)


class _Output:
    """As a model's output, of which only the hidden states are there."""

    def __init__(self, hidden: Any) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, key: Any) -> Any:
        if key in (0, "last_hidden_state"):
            return self.last_hidden_state
        raise IndexError(key)

    def __getattr__(self, name: str) -> None:
        return None


def float32_kept(model: Any) -> tuple[str, ...]:
    """Parts of names of parameters that the class keeps in float32 whatever the model's type."""
    return tuple(model._keep_in_fp32_modules_strict or ())


def _compute_buffers(model: Any, architecture: str) -> dict[str, Tensor]:
    """Buffers that no checkpoint holds. The class fills them as it does when transformers loads it."""
    stored = set(model.state_dict())
    found: dict[str, Tensor] = {}
    owners = {name: m for name, m in model.named_modules() if isinstance(m, PreTrainedModel)}
    for path, module in model.named_modules():
        names = [n for n, b in module._buffers.items() if b is not None and f"{path}.{n}" not in stored]
        if not names:
            continue
        owner = owners[max((at for at in owners if at == "" or path == at or path.startswith(f"{at}.")), key=len)]
        kept = {n: module._buffers[n] for n in names}
        for n, b in kept.items():
            module._buffers[n] = _unset(b)
        with torch.no_grad():
            owner._init_weights(module)  # type: ignore[no-untyped-call]
        for n, b in kept.items():
            value = module._buffers[n]
            if _is_unset(value):
                raise UnsupportedModelError(
                    f"{architecture}: {path}.{n} is in no checkpoint, and its class does not say how to compute it"
                )
            found[f"{path}.{n}"] = value
            module._buffers[n] = b
    return found


def _unset(b: Tensor) -> Tensor:
    if b.is_floating_point():
        return torch.full(b.shape, float("nan"), dtype=b.dtype, device="cpu")
    return torch.full(b.shape, 0 if b.dtype == torch.bool else torch.iinfo(b.dtype).min, dtype=b.dtype, device="cpu")


def _is_unset(b: Tensor) -> bool:
    if b.is_floating_point():
        return bool(b.isnan().any())
    return b.dtype != torch.bool and bool((b == torch.iinfo(b.dtype).min).any())


def _freeze_rope(model: Any, length: int) -> dict[str, Tensor]:
    """Frequencies of rotary positions that would change with the batch, settled for the longest sequence served."""
    found: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        kinds = getattr(module, "rope_type", None)
        for layer, kind in (kinds if isinstance(kinds, dict) else {None: kinds}).items():
            if not isinstance(kind, str) or not any(word in kind for word in CHANGING):
                continue
            most, prefix = length or module.config.max_position_embeddings, f"{layer}_" if layer else ""
            more = {"layer_type": layer} if layer else {}
            value, scale = ROPE_INIT_FUNCTIONS[kind](module.config, torch.device("cpu"), seq_len=most, **more)
            found[f"{path}.{prefix}inv_freq"] = value
            setattr(module, f"{prefix}attention_scaling", scale)
            if layer:
                module.rope_type = {**module.rope_type, layer: "default"}
            else:
                module.rope_type = "default"
    return found


def _plain(value: Any) -> Any:
    """A value of a saved configuration, where floats that JSON lacks are objects with a tag."""
    if isinstance(value, dict):
        tagged = value.get("__float__") if len(value) == 1 else None
        return float(tagged) if isinstance(tagged, str) else {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _line(e: Exception) -> str:
    return " ".join(str(e).split())[:300] or type(e).__name__
