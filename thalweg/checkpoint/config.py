"""Reads and checks config.json and generation_config.json. This module decides which numbers are valid. `models/` decides how
an architecture uses them. No tensor framework.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thalweg.checkpoint import gguf, native, quantised, sentence
from thalweg.checkpoint.adapters.tasks import describe_task
from thalweg.checkpoint.bounds import BOUNDS
from thalweg.checkpoint.json_files import read_json, read_object
from thalweg.checkpoint.safetensors import open_checkpoint
from thalweg.checkpoint.spelling import BESIDE as BESIDE
from thalweg.checkpoint.spelling import TALKER, TEXT_ENDS, canonical_config, select_talker
from thalweg.checkpoint.tail import decide, token_ids
from thalweg.checkpoint.weights import TensorHeaders
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.hal.platform import ModelInfo
from thalweg.options.model import TailOptions

if TYPE_CHECKING:
    from thalweg.text.tokenizer import Tokenizer

AUTO = TailOptions()

DTYPES = {
    "float32": "float32",
    "float": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "half": "float16",
}

IN_GENERATION = frozenset({"alignment_heads"})
"""Facts of the model that its files have in generation_config.json."""
ENGRAM_TOKENIZER = "engram_tokenizer"
"""Key for the path of tokenizer.json, where layers have tables of n-grams of its tokens (`engram_layer_ids`)."""
Config = Mapping[str, Any]


def read_config(
    path: str | Path,
    overrides: Mapping[str, Any] | None = None,
    accept: Callable[[quantised.QuantizationConfig], None] = quantised.refuse,
    *,
    windows: Callable[[Config], Collection[int]] | None = None,
    tail: TailOptions = AUTO,
    described_in: str | Path | None = None,
) -> dict[str, Any]:
    """config.json of a model directory, or the equivalent of a GGUF file or params.json, with top-level keys replaced by
    `overrides`. For models with other modalities it is the text part's, where `text_config` of `overrides` replaces keys too.
    `pooling` describes the pooling of hidden states, from `tail` and the files that `sentence` reads. CheckpointError names
    file and key for bad JSON, wrong types, and numbers out of range.

    accept: called with the description of quantised weights, if there is one. It raises if no format reads them. Default: all
    are rejected. An accepted description is in `quantization_config`, its name in `quant_method`, and the tensors of the files
    (`TensorHeaders`) in `stored`, if there are files. windows: returns the sliding windows of a model's layers (0 = none). The
    context is limited to the smallest, so that every layer attends to all of it. described_in: the directory of config.json and
    of files about quantised weights. None: the model's directory."""
    file, config = _load_config(Path(path), Path(described_in) if described_in else None)
    for key, value in (overrides or {}).items():
        _finite(value, f"hf_overrides: {key}")
        config.update(value if key == "text_config" and isinstance(value, dict) else {key: value})
    _finite(config, str(file))
    if architecture(config, file).endswith(TALKER):
        config = select_talker(config)
    near = () if file == Path(path) else quantised.FILES
    beside = {name: read_object(file.with_name(name)) for name in near if file.with_name(name).is_file()}
    found = quantised.find_quantization_config(config, file, beside)
    if found is not None:
        accept(found)
        settings = {**found.content, "quant_method": found.method}
        config["quantization_config"] = settings if gguf.is_gguf(path) else settings | _describe_tensors(Path(path))
    config |= {key: value for key, value in generation_defaults(path).items() if key in IN_GENERATION and key not in config}
    decide(config, architecture(config, file), tail, lambda: _pooling(Path(path)), (overrides or {}).get("pooling"))
    if config.get("classifier_from_token") is not None:
        config["classifier_token_ids"] = token_ids(config["classifier_from_token"], Path(path))
    if config.get("task_names") is not None:
        config["adapter"] = describe_task(folder(Path(path)), config, read_json)
    tokens = folder(Path(path)) / "tokenizer.json"
    if config.get("engram_layer_ids") and tokens.is_file():
        config[ENGRAM_TOKENIZER] = str(tokens.absolute())
    if windows is not None:
        _within_window(config, min(filter(None, windows(config)), default=0))
    return config


def _load_config(path: Path, elsewhere: Path | None) -> tuple[Path, dict[str, Any]]:
    """(file that describes the model, content of config.json or its equivalent). elsewhere: the directory of config.json."""
    if gguf.is_gguf(path):
        return path, gguf.read_config(path)
    if native.is_native(path):
        return path, native.read_config(path)
    file = (elsewhere or path) / "config.json"
    return file, canonical_config(
        read_object(file, infinite=True)
    )  # only `canonical_config` handles infinities: `_finite` rejects others


def _pooling(path: Path) -> dict[str, Any] | None:
    return gguf.pooling(path) if gguf.is_gguf(path) else sentence.read_pooling(folder(path), read_json)


def folder(path: Path) -> Path:
    """The model's directory: `path`, or its parent for a params.json."""
    return path.parent if native.is_native(path) else path


def _describe_tensors(path: Path) -> dict[str, Any]:
    """{"stored": tensor headers} of a quantised checkpoint: rules do not determine which layers are dense. {}: the files are
    faulty, which the loader will report."""
    try:
        return {"stored": TensorHeaders(path)}
    except CheckpointError:
        return {}


def _within_window(config: dict[str, Any], window: int) -> None:
    """Limit the context to the window, if there is one, so that the window hides no token."""
    length = max_len(config)
    if not 0 < window < length:
        return
    rope = "default" if _by_layer_type(config) else rope_parameters(config)["rope_type"]
    if rope not in ("default", "llama3"):
        raise UnsupportedModelError(
            f"disable_sliding_window: not with positions scaled by {rope}, which depend on the context's length; "
            f"remove the flag, and set max_model_len to {window}"
        )
    config["max_position_embeddings"] = window


def architecture(config: Config, where: str | Path = "config.json") -> str:
    """The first entry of `architectures`."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(n, str) and n for n in names):
        raise CheckpointError(f"{where}: architectures: must be a list with the model's class name, not {names!r:.80}")
    return str(names[0])


def facts(config: Config, path: str | Path) -> ModelInfo:
    """The properties of the model for platforms' choice of defaults. Reads the headers of weight files if there are any."""
    hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads", default=1)  # Mamba has none
    kv_heads = integer(config, "num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise CheckpointError(
            f"config.json: num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv_heads})"
        )
    stored, size = _weights(Path(path), bool(config.get("quantization_config")))
    return ModelInfo(
        architecture=architecture(config),
        dtype=_dtype(config) or stored or "float32",
        layers=integer(config, "num_hidden_layers", high=10_000),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=integer(config, "head_dim", high=65_536, default=max(1, hidden // heads)),
        vocab=integer(config, "vocab_size"),
        max_len=max_len(config),
        weight_bytes=size,
        longest=_longest(config),
        prompt_tokens=_prompt_tokens(config),
    )


def _prompt_tokens(config: Config) -> int:
    """Llama 3.2 Vision: the placeholder of images has a row of the embedding, but none of the output matrix."""
    around = config.get(BESIDE)
    return int(isinstance(around, dict) and around.get("image_token_index") == config.get("vocab_size"))


def max_len(config: Config) -> int:
    """Most tokens of a sequence, prompt and output: the positions that the model supports.

    The number is multiplied by the factor where the configuration has the unscaled number: linear (times factor), and yarn
    (original length times factor, if larger). "dynamic" is not scaled, because its frequencies depend on the longest sequence
    served (see models/layers/rotary.py). Its default is the trained length. `ModelInfo.longest` is the longest that a user may
    request."""
    key = "max_position_embeddings" if "max_position_embeddings" in config else "max_sequence_length"
    if key not in config:
        raise CheckpointError("config.json: max_position_embeddings: missing")
    length = integer(config, key)
    pooled = config.get("pooling")
    if isinstance(pooled, dict):  # text encoders are trained for fewer positions than they have
        length = min(length, integer(pooled, "max_len", default=length, where=sentence.LENGTHS))
    if _by_layer_type(config):
        return min(length, 1 << 30)  # families with settings per layer type give the scaled number
    rope = rope_parameters(config)
    if rope["rope_type"] == "linear":
        length = int(length * real(rope, "factor", 1, 1e6, where="rope_parameters"))
    elif rope["rope_type"] == "yarn" and rope.get("factor") is not None:
        original = integer(rope, "original_max_position_embeddings", where="rope_parameters", default=length)
        length = max(length, int(original * real(rope, "factor", 1, 1e6, where="rope_parameters")))
    return min(length, 1 << 30)


def _longest(config: Config) -> int:
    """Tokens within reach of "dynamic" positions: the model's length times the factor. 0: not dynamic."""
    if _by_layer_type(config) or (rope := rope_parameters(config))["rope_type"] != "dynamic" or rope.get("alpha"):
        return 0
    return min(int(max_len(config) * real(rope, "factor", 1, 1e6, where="rope_parameters")), 1 << 30)


def rope_parameters(config: Config, kind: str = "") -> dict[str, Any]:
    """RoPE settings in one spelling: from `rope_parameters`, or the older `rope_scaling` with a separate `rope_theta` and
    `type` for `rope_type`. Always has rope_type and rope_theta, and partial_rotary_factor if the file has it. kind: the layer
    type, required for families with settings per layer type."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise CheckpointError(f"config.json: rope_parameters: must be an object, not {rope!r:.80}")
    local = config.get("rope_local_base_freq")
    if any(isinstance(v, dict) for v in rope.values()):
        if not isinstance(rope.get(kind), dict):
            raise UnsupportedModelError(
                "config.json: rope_parameters: this family has no settings per layer type"
                if not kind
                else f"config.json: rope_parameters: no settings for layers of type {kind!r}"
            )
        rope = rope[kind]
    elif kind == "sliding_attention" and local is not None:  # Gemma 3's files from before transformers 5
        rope = {"rope_theta": real(config, "rope_local_base_freq", 1e-3, 1e15)}
    out = dict(rope)
    kind = out.pop("type", None)
    out.setdefault("rope_type", kind or "default")
    if not isinstance(out["rope_type"], str):
        raise CheckpointError(f"config.json: rope_type: must be text, not {out['rope_type']!r:.80}")
    if out.get("rope_theta") is None:
        out["rope_theta"] = real(config, "rope_theta", 1e-3, 1e15, default=10_000.0)
    real(out, "rope_theta", 1e-3, 1e15, where="rope_parameters")
    if out["rope_type"] in ("llama3", "yarn", "longrope"):
        known = config.get("original_max_position_embeddings")
        out["original_max_position_embeddings"] = (
            known or out.get("original_max_position_embeddings") or config.get("max_position_embeddings")
        )
    partial = out.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial is not None:
        out["partial_rotary_factor"] = partial
    return out


def _by_layer_type(config: Config) -> bool:
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    nested = isinstance(rope, dict) and any(isinstance(v, dict) for v in rope.values())
    return nested or config.get("rope_local_base_freq") is not None or isinstance(config.get("rope_theta"), list)


def generation_defaults(path: str | Path) -> dict[str, Any]:
    """generation_config.json of the directory (or the file itself), or a GGUF file's equivalent. {} if there is none."""
    if gguf.is_gguf(path):
        return gguf.generation_defaults(path)
    file = folder(Path(path))
    file = file / "generation_config.json" if file.is_dir() else file
    if not file.exists():
        return {}
    content = read_object(file)
    _finite(content, str(file))
    return content


def eos_ids(
    path: str | Path, config: Config, tokenizer: Tokenizer | None = None, more: Mapping[str, Any] | None = None
) -> tuple[int, ...]:
    """Distinct token ids that end a sequence: the union over a model's files, in this order.

    1. `more`, a generation config that the user names, where there is one.
    2. generation_config.json.
    3. config.json, as the user overrides it.
    4. Its text part, where the whole model names other ids. Of these only special tokens of `tokenizer` count: configurations
       of parts often keep a default of their class, which is an ordinary token of the model's vocabulary.
    5. `eos_token` of the tokenizer. Fine-tunes of base models often name their end of turn only there.

    CheckpointError names the file and the invalid token id."""
    out: dict[int, None] = {}
    sources = (
        ("generation config", more or {}),
        ("generation_config.json", generation_defaults(path)),
        ("config.json", config),
    )
    for where, source in sources:
        out |= dict.fromkeys(_ends(where, source.get("eos_token_id")))
    inner = _ends("config.json: text_config", config.get(TEXT_ENDS))
    if tokenizer is not None:
        out |= dict.fromkeys([*(i for i in inner if i in tokenizer.control_ids), *tokenizer.eos_ids])
    return tuple(out)


def _ends(where: str, value: Any) -> list[int]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for i in ids:
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < 2**31:
            raise CheckpointError(f"{where}: eos_token_id: {i!r:.80} is not a token id")
    return ids


# ------------------------------------------------------------------ checked values


def integer(
    config: Config, key: str, low: int | None = None, high: int | None = None, *, default: int | None = None,
    where: str = "config.json",
) -> int:  # fmt: skip
    """config[key] as an integer in [low, high], or `default` where it is absent or null. The bounds are those of `BOUNDS`, else
    every positive 32-bit integer, unless others are given. CheckpointError names the key."""
    value = config.get(key)
    if value is None:
        if default is None:
            raise CheckpointError(f"{where}: {key}: missing")
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise CheckpointError(f"{where}: {key}: must be an integer, not {value!r:.80}")
    least, most = BOUNDS.get(key, (1, 2**31 - 1))
    low, high = int(least) if low is None else low, int(most) if high is None else high
    if not low <= value <= high:
        raise CheckpointError(f"{where}: {key}: must be between {low} and {high}, not {value if abs(value) < 1e30 else 'that'}")
    return value


def real(
    config: Config, key: str, low: float | None = None, high: float | None = None, *, default: float | None = None,
    where: str = "config.json",
) -> float:  # fmt: skip
    """config[key] as a finite number in [low, high], or `default` where it is absent or null. The bounds are those of `BOUNDS`
    unless others are given. CheckpointError names the key."""
    value = config.get(key)
    if value is None:
        if default is None:
            raise CheckpointError(f"{where}: {key}: missing")
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CheckpointError(f"{where}: {key}: must be a number, not {value!r:.80}")
    if low is None or high is None:
        low, high = BOUNDS[key]
    if not low <= value <= high:
        raise CheckpointError(f"{where}: {key}: must be between {low:g} and {high:g}, not {value!r:.40}")
    return float(value)


def flag(config: Config, key: str, default: bool) -> bool:
    """config[key] as true or false, or `default` where it is absent or null."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise CheckpointError(f"config.json: {key}: must be true or false, not {value!r:.80}")
    return value


def text(config: Config, key: str, default: str) -> str:
    """config[key] as text, or `default` where it is absent or null."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, str):
        raise CheckpointError(f"config.json: {key}: must be text, not {value!r:.80}")
    return value


def section(config: Config, key: str, where: str = "config.json") -> dict[str, Any]:
    """config[key] as an object, empty where it is absent or null. CheckpointError names the key."""
    value = config.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: {key}: must be an object, not {value!r:.80}")
    return value


def name_list(config: Config, key: str, known: Collection[str], count: int) -> list[str] | None:
    """config[key] as `count` names of `known`, or None where it is absent or null. CheckpointError names the key."""
    value = config.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != count or not all(isinstance(n, str) and n in known for n in value):
        raise CheckpointError(f"config.json: {key}: must be a list of {count} names: {' or '.join(known)}")
    return value


def _finite(value: Any, where: str) -> None:
    """CheckpointError for NaN and infinities. 1e999 parses as infinity too."""
    stack = [("", value)]
    while stack:
        name, v = stack.pop()
        if isinstance(v, float) and not math.isfinite(v):
            raise CheckpointError(f"{where}: {name.lstrip('.') or 'value'}: {v} is not a finite number")
        if isinstance(v, dict):
            stack += [(f"{name}.{k}", x) for k, x in v.items()]
        elif isinstance(v, list):
            stack += [(f"{name}[{i}]", x) for i, x in enumerate(v)]


def _dtype(config: Config) -> str | None:
    """Our name for `dtype`, or `torch_dtype` in older files."""
    value = config.get("dtype") or config.get("torch_dtype")
    if value is None or value == "auto":
        return None
    name = value.removeprefix("torch.") if isinstance(value, str) else value
    if not isinstance(name, str) or name not in DTYPES:
        raise CheckpointError(f"config.json: dtype: {value!r:.80} is not one of {', '.join(sorted(set(DTYPES.values())))}")
    return DTYPES[name]


def _weights(path: Path, known_to_be_quantised: bool) -> tuple[str | None, int]:
    """(dtype of most weights, their bytes). (None, 0) without safetensors files. GGUF: dtype None, as the configuration has
    it."""
    if gguf.is_gguf(path):
        return None, gguf.open_model(path).bytes
    if not any(folder(path).glob("*.safetensors")):
        return None, 0
    checkpoint = native.open_consolidated(path) if native.is_native(path) else open_checkpoint(path)
    count: dict[str, int] = {}
    for name, file, e in checkpoint.tensors():
        if not known_to_be_quantised:
            quantised.refuse_tensor(file, name, e.dtype)
        count[e.dtype] = count.get(e.dtype, 0) + e.end - e.begin
    known = {d: n for d, n in count.items() if d in DTYPES}
    return max(known, key=lambda d: known[d], default=None), checkpoint.bytes
