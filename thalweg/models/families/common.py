"""Configuration keys shared by many families, read once here. A family overrides its differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, max_len, real, rope_parameters, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.spec import MLP, Attention, Layer, ModelSpec, Norm, Norms, Rope, UngatedMLP, rope_type
from thalweg.models.tail import ACTS, POOLING, Classes, Dense, Lexical, Pooling

MAX_LABELS = 65_536
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
"""`hidden_act` of a configuration -> `act` of the op act_and_mul."""
UNGATED = {**ACTIVATIONS, "relu": "relu", "relu2": "relu2"}
"""The same of the op activation."""


def layer_count(config: Config) -> int:
    return integer(config, "num_hidden_layers", high=10_000)


def hidden_size(config: Config) -> int:
    return integer(config, "hidden_size", high=1 << 20)


def eps(config: Config, default: float = 1e-6) -> float:
    return real(config, "rms_norm_eps", default=default)


def act(config: Config, key: str = "hidden_act", default: str = "silu", known: Mapping[str, str] = ACTIVATIONS) -> str:
    name = text(config, key, default)
    if name not in known:
        raise UnsupportedModelError(f"config.json: {key}: unknown {name!r:.80}; supported: {', '.join(known)}")
    return known[name]


def rope(
    config: Config, head_dim: int, *, kind: str = "", partial: bool = False, interleaved: bool = False, keys: Sequence[str] = ()
) -> Rope:
    """Rotary positions. kind: the layer type, where settings differ by it. partial: the family may turn a part of each
    head; of others such a setting is refused. keys: further ones of `rope_parameters` that the family reads. `registry.family`
    refuses unknown ones."""
    parameters = dict(rope_parameters(config, kind))
    whole = parameters["rope_type"] == "proportional"  # of which the share is a setting
    share = None if whole else parameters.pop("partial_rotary_factor", None)
    if share is not None and share != 1 and not partial:
        raise UnsupportedModelError(f"config.json: partial_rotary_factor {share!r}: this family turns whole heads")
    dim = head_dim if share is None else int(head_dim * real({"f": share}, "f", 0, 1, where="partial_rotary_factor"))
    rope_type(parameters, dim)
    return Rope(
        parameters, dim, integer(config, "max_position_embeddings", default=max_len(config)), interleaved, keys=tuple(keys)
    )


def attention(config: Config, *, head_dim: int = 0, rope: Rope | None = None, **more: Any) -> Attention:
    """Grouped-query attention over whole rotated heads. more: fields of `spec.Attention` that the family decides."""
    heads = integer(config, "num_attention_heads")
    kv = integer(config, "num_key_value_heads", default=heads)
    if heads % kv:
        raise CheckpointError(f"config.json: num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv})")
    head_dim = head_dim or head_size(config)
    return Attention(heads=heads, kv_heads=kv, head_dim=head_dim, rope=rope or _rope(config, head_dim), **more)


_rope = rope


def both_ways(config: Config, **more: Any) -> Attention:
    """MHA of a text encoder. more: fields of `spec.Attention` that the family decides."""
    hidden, heads = hidden_size(config), integer(config, "num_attention_heads")
    if hidden % heads:
        raise CheckpointError(f"config.json: hidden_size ({hidden}) must be a multiple of num_attention_heads ({heads})")
    return Attention(heads=heads, kv_heads=heads, head_dim=hidden // heads, causal=False, **more)


def clip(config: Config, where: str = "config.json") -> float:
    """`clip_qkv`, the largest magnitude of q, k and v; null = no clipping."""
    return 0.0 if config.get("clip_qkv") is None else real(config, "clip_qkv", 1e-6, 1e6, where=where)


def head_size(config: Config) -> int:
    even = max(1, hidden_size(config) // integer(config, "num_attention_heads"))
    return integer(config, "head_dim", default=even)


def mlp(config: Config, **more: Any) -> MLP:
    section: dict[str, Any] = {"act": act(config)} if "act" not in more else {}
    if "inner" not in more:
        section["inner"] = integer(config, "intermediate_size")
    return MLP(**(section | more))


def ungated_mlp(config: Config, **more: Any) -> UngatedMLP:
    section: dict[str, Any] = {"inner": integer(config, "intermediate_size")}
    if "act" not in more:
        section["act"] = act(config, known=UNGATED)
    return UngatedMLP(**(section | more))


def pre_norms(config: Config) -> Norms:
    """One norm before attention, one before the feed-forward part, by Llama's names."""
    size, e = hidden_size(config), eps(config)
    return Norms(mixer=Norm("input_layernorm", size, e), ffn=Norm("post_attention_layernorm", size, e))


def decoder(config: Config, layers: Iterable[Layer], **more: Any) -> ModelSpec:
    """more: fields of `spec.ModelSpec` that the family decides."""
    hidden = hidden_size(config)
    section: dict[str, Any] = {
        "vocab": integer(config, "vocab_size"), "hidden": hidden, "layers": tuple(layers),
        "norm": Norm("norm", hidden, eps(config)), "tied": flag(config, "tie_word_embeddings", False),
    }  # fmt: skip
    return ModelSpec(**(section | more))


def llama_decoder(config: Config, windows: Sequence[int], mlp: MLP, **heads: Any) -> ModelSpec:
    """Llama's layers, with a window per layer (0 = none). heads: arguments of `attention`."""
    norms = pre_norms(config)
    kinds = {w: Layer(attention(config, window=w, **heads), mlp, norms) for w in dict.fromkeys(windows)}
    return decoder(config, [kinds[w] for w in windows])


def sliding_window(config: Config) -> int:
    """`sliding_window` in tokens: null = 0, none; absent = 4096, the default of families with the key."""
    return 0 if config.get("sliding_window", 4096) is None else integer(config, "sliding_window", default=4096)


def layer_windows(config: Config) -> tuple[int, ...]:
    """Windows of the families that choose per layer: by `layer_types`, or without it for every layer from `max_window_layers`
    on. All windows require `use_sliding_window`."""
    layers = layer_count(config)
    window = sliding_window(config) if flag(config, "use_sliding_window", False) else 0
    first = integer(config, "max_window_layers", default=28)
    absent = ["sliding_attention" if window and i >= first else "full_attention" for i in range(layers)]
    return tuple(window if t == "sliding_attention" else 0 for t in layer_types(config, absent))


def layer_types(
    config: Config, absent: Sequence[str], known: Sequence[str] = ("full_attention", "sliding_attention")
) -> tuple[str, ...]:
    """`layer_types`, one name per layer; `absent` where the configuration does not say."""
    layers, types = layer_count(config), config.get("layer_types")
    if types is None:
        types = list(absent)
    if not isinstance(types, list) or len(types) != layers:
        raise CheckpointError(f"config.json: layer_types: must be a list of {layers} names, one per layer")
    odd = sorted({str(t) for t in types} - set(known))
    if odd:
        raise UnsupportedModelError(f"config.json: layer_types: {odd[0]!r:.80} is not supported by this version")
    return tuple(types)


def pooling(config: Config, default: str, lexical: Callable[[], Pooling] | None = None) -> Pooling:
    """Pooling of a model: as its other files say, or `default` with normalised vectors where they say nothing. lexical:
    makes the tail of a sparse encoder, if the family has one."""
    section = config.get("pooling")
    if not isinstance(section, dict):
        section = {}
    if flag(section, "lexical", False):
        if lexical is None:
            raise UnsupportedModelError("modules.json: SpladePooling is not supported for this architecture")
        return lexical()
    mode = text(section, "mode", default)
    if mode not in POOLING:
        raise UnsupportedModelError(f"config.json: pooling: unknown mode {mode!r:.80}; supported: {', '.join(POOLING)}")
    try:
        dense = tuple(Dense(**each) for each in section.get("dense", ()))
        prompts = tuple(sorted(dict(section.get("prompts", {})).items()))
    except (TypeError, ValueError) as e:  # of an override: files are checked where they are read
        raise CheckpointError(f"config.json: pooling: {e}") from e
    size = hidden_size(config)
    for each in dense:
        if each.inputs != size:
            raise CheckpointError(f"{each.folder}/config.json: in_features: {each.inputs}, of vectors with {size} values")
        size = each.outputs
    return Pooling(
        mode, flag(section, "normalise", True), _dimensions(config, size), None, dense, prompts,
        each=flag(section, "each", False), **_of_tokens(config),
    )  # fmt: skip


def word_weights(config: Config, *, dense: str, norm: str, bias: str, act: str, eps: float) -> Pooling:
    """The tail of a sparse encoder: a weight for each word of the vocabulary, made by the head that guesses words. dense,
    norm, bias: names of its tensors. act: between the first two."""
    if act not in ACTS:
        raise UnsupportedModelError(f"config.json: hidden_act: {act}: the head that guesses words supports {', '.join(ACTS)}")
    lexical = Lexical(
        dense=dense, norm=norm, bias=bias, act=act, eps=eps, table="embeddings.word_embeddings",
        vocab=integer(config, "vocab_size"),
    )  # fmt: skip
    return Pooling("max", activate=False, lexical=lexical)


def _dimensions(config: Config, hidden: int) -> tuple[int, ...] | None:
    """`matryoshka_dimensions`, sizes that vectors may be cut to, or `is_matryoshka`: any. None: neither is said."""
    sizes = config.get("matryoshka_dimensions")
    if sizes is None:
        return () if flag(config, "is_matryoshka", False) else None
    if not isinstance(sizes, list) or not sizes or not all(type(n) is int and 1 <= n <= hidden for n in sizes):
        raise CheckpointError(f"config.json: matryoshka_dimensions: must be a list of sizes from 1 to {hidden}")
    return tuple(sorted(set(sizes)))


def classes(config: Config, **more: Any) -> Pooling:
    """The tail of a classifier, from the state of a sequence's first token unless `mode` says otherwise. more: fields of
    `tail.Classes` that the family decides."""
    mode = more.pop("mode", "cls")
    each = more.pop("each", False)
    section = config.get("pooling")
    if isinstance(section, dict) and section.get("mode", mode) != mode:
        raise UnsupportedModelError(
            f"config.json: pooling: this classifier was trained on {mode}, not on {section['mode']!r:.80}"
        )
    labels = _labels(config)
    activate = flag(section, "normalise", True) if isinstance(section, dict) else True
    result = Classes(labels=labels, activation=_activation(config, len(labels)), **more)
    return Pooling(mode, activate, None, result, each=each, **_of_tokens(config))


def token_classes(config: Config, **more: Any) -> Pooling:
    """The tail of a classifier of tokens: a number per class of each token's state. more: arguments of `classes`."""
    return classes(config, each=True, **{"bias": True, **more})


def _of_tokens(config: Config) -> dict[str, Any]:
    """The user's choice of returned results per token (`checkpoint.tail`)."""
    section = config.get("pooling")
    if not isinstance(section, dict):
        return {}
    columns = section.get("returned_token_ids") or ()
    if not isinstance(columns, list | tuple) or not all(type(c) is int and c >= 0 for c in columns):
        raise CheckpointError("config.json: pooling: returned_token_ids: must be a list of integers from 0")
    tag = None if section.get("step_tag_id") is None else integer(section, "step_tag_id", low=0)
    return {"columns": tuple(columns), "step_tag": tag}


def _labels(config: Config) -> tuple[str, ...]:
    """`id2label` in order of the ids. Without it LABEL_0 ..., `num_labels` names, or two."""
    named = config.get("id2label")
    if named is None:
        return tuple(f"LABEL_{i}" for i in range(integer(config, "num_labels", high=MAX_LABELS, default=2)))
    ids = sorted(map(int, named)) if isinstance(named, dict) and all(str(k).isdecimal() for k in named) else []
    if not ids or ids != list(range(len(ids))) or len(ids) > MAX_LABELS:
        raise CheckpointError("config.json: id2label: must map the ids 0, 1, ... to names")
    return tuple(str(named[str(i)] if str(i) in named else named[i]) for i in ids)


_PROBLEMS = {"regression": "none", "single_label_classification": "softmax", "multi_label_classification": "sigmoid"}
_MODULES = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}


def _activation(config: Config, labels: int) -> str:
    """The activation of a classifier's numbers: by `problem_type`, by the cross-encoder settings of sentence-transformers, else
    a sigmoid for one number, a softmax for several."""
    problem = text(config, "problem_type", "")
    if problem:
        if problem not in _PROBLEMS:
            raise UnsupportedModelError(
                f"config.json: problem_type: unknown {problem!r:.80}; supported: {', '.join(_PROBLEMS)}"
            )
        return "sigmoid" if problem == "single_label_classification" and labels == 1 else _PROBLEMS[problem]
    beside = config.get("sentence_transformers")
    name = beside.get("activation_fn") if isinstance(beside, dict) else config.get("sbert_ce_default_activation_function")
    if name is None:
        return "sigmoid" if labels == 1 else "softmax"
    module = str(name).rpartition(".")[2]
    if module not in _MODULES:
        raise UnsupportedModelError(f"config.json: activation {name!r:.80} is not supported; known are {', '.join(_MODULES)}")
    return _MODULES[module]
