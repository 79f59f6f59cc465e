"""Tiny random models that only transcribe, made by transformers, with tokenizers of pieces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models
from zoo import _copied, spread

LABELS = 41
ENCODER: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "num_mel_bins": 16,
    "subsampling_conv_channels": 8, "conv_kernel_size": 5,
}  # fmt: skip
TRANSDUCER: dict[str, Any] = {"decoder_hidden_size": 24, "blank_token_id": LABELS - 1, "pad_token_id": 2}
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "ctc": (transformers.ParakeetForCTC, transformers.ParakeetCTCConfig, {"pad_token_id": LABELS - 1}),
    "rnnt": (transformers.ParakeetForRNNT, transformers.ParakeetRNNTConfig, TRANSDUCER),
    "tdt": (transformers.ParakeetForTDT, transformers.ParakeetTDTConfig, TRANSDUCER),
    "streaming": (transformers.NemotronAsrStreamingForRNNT, transformers.NemotronAsrStreamingConfig, TRANSDUCER),
    "nemotron": (
        transformers.Nemotron3_5AsrForRNNT,
        transformers.Nemotron3_5AsrConfig,
        {**TRANSDUCER, "num_prompts": 12, "default_prompt_id": 7, "prompt_intermediate_size": 40},
    ),
}
CHUNKS = {"sliding_window": 15, "default_num_lookahead_tokens": 5}
NEMOTRON = ("streaming", "nemotron")


def pieces() -> Tokenizer:
    """Pieces of which every third begins a word."""
    vocab = {(f"▁{chr(97 + i % 26)}" if i % 3 == 0 else chr(97 + i % 26) + chr(97 + i // 26)): i for i in range(LABELS - 1)}
    tok = Tokenizer(models.WordLevel(vocab | {"<blank>": LABELS - 1}, unk_token="▁a"))
    tok.decoder = decoders.Metaspace()
    tok.add_special_tokens(["<blank>"])
    return tok


def write_settings(path: Path, extractor: Any) -> None:
    extractor.save_pretrained(path)
    pieces().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<blank>"}))


def make_parakeet(name: str, directory: Path, encoder: dict[str, Any] | None = None, **more: Any) -> Path:
    model_class, config_class, settings = KINDS[name]

    def make(path: Path) -> None:
        chunks = CHUNKS if name in NEMOTRON else {}
        config = config_class(
            **{"vocab_size": LABELS, "encoder_config": {**ENCODER, **chunks, **(encoder or {})}, **settings, **more}
        )
        model = model_class._from_config(config).eval()
        spread(model.encoder, 7)
        move(model)
        model.save_pretrained(path)
        write_settings(path, extractor_class(name)(feature_size=config.encoder_config.num_mel_bins))

    return _copied((name, json.dumps([encoder, more])), make, directory / name)


def extractor_class(name: str) -> Any:
    kind = "NemotronAsrStreaming" if name in NEMOTRON else "Parakeet"
    return getattr(transformers, f"{kind}FeatureExtractor")


def move(model: Any) -> None:
    """Weights by which sounds matter, and running means of batch norms that are no zeros."""
    g = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "conv" in name and p.ndim > 2:
                p.normal_(0, 1.5 / p[0].numel() ** 0.5, generator=g)
            elif not name.startswith("encoder."):
                p.normal_(0, 0.3 if p.ndim == 1 else 2.0 / p[0].numel() ** 0.5, generator=g)
        if hasattr(model, "joint"):  # sounds must matter, and most frames are blanks
            model.encoder_projector.weight.mul_(3)
            model.joint.head.bias[LABELS - 1] += 4
        for name, b in model.named_buffers():
            if name.endswith("running_mean"):
                b.normal_(0, 0.3, generator=g)
            elif name.endswith("running_var"):
                b.uniform_(0.5, 2, generator=g)


def load(name: str, path: Path) -> Any:
    attention = "sdpa" if name in NEMOTRON else "eager"  # whose masks those models read
    return KINDS[name][0].from_pretrained(path, dtype=torch.float32, attn_implementation=attention).eval()


@torch.inference_mode()
def transcribe(name: str, model: Any, path: Path, wave: np.ndarray) -> list[tuple[int, int, int]]:
    """transformers' tokens: id, first frame, and the frame behind the last."""
    inputs = extractor_class(name).from_pretrained(path)(wave, sampling_rate=16_000, return_tensors="pt")
    if name == "ctc":
        return collapse(model.generate(**inputs)[0].tolist(), model.config.pad_token_id)
    blank = model.config.blank_token_id
    most = 20 * len(wave) // 1280 + 20
    out = model.generate(**inputs, decoder_start_token_id=blank, eos_token_id=None, max_new_tokens=most)
    ids, steps = out.sequences[0].tolist()[1:], out.durations[0].tolist()[1:]
    found, at = [], 0
    for token, step in zip(ids, steps, strict=True):
        if token != blank:
            found.append((token, at, at + (step if name == "tdt" else 1)))
        at += step
    return found


def collapse(frames: list[int], blank: int) -> list[tuple[int, int, int]]:
    """Runs of equal tokens, without those of blanks."""
    found, begin = [], 0
    for i in range(1, len(frames) + 1):
        if i == len(frames) or frames[i] != frames[begin]:
            found += [] if frames[begin] == blank else [(frames[begin], begin, i)]
            begin = i
    return found


def read(vector: np.ndarray) -> list[tuple[int, int, int]]:
    """The same of our result."""
    rows = vector[1 : 1 + 4 * int(vector[0])].reshape(-1, 4)
    return [(int(r[0]), int(r[2]), int(r[3])) for r in rows]
