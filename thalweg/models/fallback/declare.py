"""From a configuration to the spec of a model that transformers' own module computes. Entered by `models.registry` where there
is no family, or where the user asks for it."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from thalweg.checkpoint.config import architecture
from thalweg.errors import ThalwegError, UnsupportedModelError
from thalweg.models.fallback import classes, experts, probe
from thalweg.models.fallback.products import LinearUsage, stub_linears
from thalweg.models.fallback.spec import ModuleParameter, TransformersSpec, attends
from thalweg.models.registry import WRAPPERS
from thalweg.models.weights import Role

ATTENDING = frozenset({"full_attention", "sliding_attention"})
"""Types of layers with attention only: their state is keys and values."""


def build_spec(config: Mapping[str, Any]) -> TransformersSpec:
    """As it generates, whatever its tail. UnsupportedModelError says why a class cannot be served so. CheckpointError: it does
    not take the configuration."""
    values = {key: value for key, value in config.items() if key != "pooling"}
    if architecture(config) in WRAPPERS:
        values["architectures"] = [classes.causal_lm_class(config)]
    return _build_spec(json.dumps(values, sort_keys=True, default=str))


@functools.lru_cache(maxsize=2)
def _build_spec(text: str) -> TransformersSpec:
    config = json.loads(text)
    name = architecture(config)
    if config.get("quantization_config"):
        raise UnsupportedModelError(f"{name}: the fallback to transformers serves dense weights; quantised ones need a family")
    _layers_attend(config, name)
    result = classes.make(config, "bfloat16")
    found = looked_at(result, name)
    model, settings, calls = result.model, result.model.config.get_text_config(), found.calls
    width = _width(model, settings)
    held, products = _collect_tensors(model, found.products)
    entry = next(h.name for h in held if h.role == "embedding")
    return TransformersSpec(
        root="", embed=entry.removesuffix(".weight"), products=products,
        vocab=_rows(model), hidden=_hidden_size(result), norm=None, tied=bool(settings.tie_word_embeddings), config=config,
        layers=tuple(
            attends(c.heads, c.kv_heads, c.head_dim, c.scale, c.sees, c.softcap, c.sinks, width) for c in calls
        ),
        values=tuple(c.value_dim for c in calls), held=held,
        ignored=tuple(sorted(model._keys_to_ignore_on_load_unexpected or ())),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Findings of a probe on the meta device."""

    calls: list[probe.AttentionCall]
    """Attention of its layers, in order."""
    products: tuple[str, ...]
    """Names of linear layers that may be computed elsewhere."""


def looked_at(result: classes.MetaModel, name: str) -> ProbeResult:
    """Attention by a run with masks, and by a run without masks or repeats, which is how it is served. Linear layers with a
    weight that no other module reads, except the embedding."""
    entry, seen = result.model.get_input_embeddings().weight, LinearUsage()
    try:
        with stub_linears(result.model, seen):
            calls = probe.run(result.base, None, seen)
            served = probe.run(result.base, {c.name: c.sees for c in calls}, seen)
            head = classes.head_alone(result.model)
            hidden = torch.empty(1, probe.TOKENS, _hidden_size(result), dtype=result.model.dtype, device="meta")
            with torch.inference_mode(), probe.TokenMixDetector(None, seen):
                logits = head(inputs_embeds=hidden, use_cache=False).logits
    except ThalwegError as e:
        raise UnsupportedModelError(f"{name}: the fallback to transformers does not serve it: {e}") from e
    except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError, KeyError, IndexError) as e:
        raise UnsupportedModelError(
            f"{name}: the fallback to transformers does not serve it: it cannot run without looking at values, or with tokens "
            f"only ({' '.join(str(e).split())[:160]})"
        ) from e
    differ = next((a for a, b in zip(calls, served, strict=False) if a != b), None)
    if differ is not None or len(calls) != len(served):
        which = "a layer" if differ is None else differ.name
        raise UnsupportedModelError(f"{name}: the fallback to transformers does not serve it: {which} needs its mask")
    if any(c.sees < 0 for c in calls):
        raise UnsupportedModelError(f"{name}: the fallback to transformers does not serve it: its tokens see those after them")
    if logits.shape != (1, probe.TOKENS, _rows(result.model)):
        raise UnsupportedModelError(f"{name}: its head gives {tuple(logits.shape)} of {probe.TOKENS} tokens")
    return ProbeResult(calls, seen.exchangeable(id(entry)))


def _layers_attend(config: Mapping[str, Any], name: str) -> None:
    kinds = config.get("layer_types") or ()
    other = sorted({str(k) for k in kinds} - ATTENDING) if isinstance(kinds, list) else []
    if other:
        raise UnsupportedModelError(
            f"{name}: the fallback to transformers serves attention over all tokens or a window; this has layers of type "
            f"{', '.join(other)}, which need a family of thalweg"
        )


def _rows(model: Any) -> int:
    """Logits of a token."""
    head = model.get_output_embeddings()
    if head is None or getattr(head, "weight", None) is None:
        raise UnsupportedModelError(f"{type(model).__name__}: it has no output matrix")
    return int(head.weight.shape[0])


def _hidden_size(result: classes.MetaModel) -> int:
    return int(result.model.get_output_embeddings().weight.shape[1])


def _width(model: Any, settings: Any) -> int:
    """Inner values of a token between attention layers, about: the widest product, or those of the experts chosen."""
    rows = _rows(model)
    wide = [p.shape[0] for p in model.parameters() if p.dim() == 2 and p.shape[0] != rows]
    chosen = getattr(settings, "num_experts_per_tok", None) or 1
    inner = [p.shape[-2] for p in model.parameters() if p.dim() == 3]
    return int(max([*wide, *(n * chosen for n in inner)], default=1))


def _collect_tensors(model: Any, exchanged: tuple[str, ...]) -> tuple[tuple[ModuleParameter, ...], tuple[ModuleParameter, ...]]:
    """Every tensor of the state, a tied one once, and the weights of the layers that ops compute."""
    entry, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    kept, first, result, products = (
        classes.float32_kept(model),
        dict[int, str](),
        list[ModuleParameter](),
        list[ModuleParameter](),
    )
    mixtures = {f"{at}.{part}": act for at, act in experts.expert_activations(model).items() for part in experts.PARTS}
    for name, tensor in model.state_dict(keep_vars=True).items():
        exact = tensor.dtype == torch.float32 or any(part in name for part in kept)
        dtype = "float32" if exact else "" if tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch.")
        layer, source = name.removesuffix(".weight"), first.setdefault(id(tensor), name)
        if layer in exchanged and name.endswith(".weight") and not dtype:
            role: Role = "linear" if tensor is not head else "tied" if tensor is entry else "head"
            products.append(ModuleParameter(layer, tuple(tensor.shape), role, source=source))
        elif name in mixtures and not dtype:
            products.append(ModuleParameter(name, tuple(tensor.shape), "experts", act=mixtures[name]))
        elif source == name:
            role = "embedding" if tensor is entry else "head" if tensor is head else "plain"
            result.append(ModuleParameter(name, tuple(tensor.shape), role, dtype))
    return tuple(result), tuple(products)
