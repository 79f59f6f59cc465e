"""A tiny random Speech2Text model, made by transformers, with sentencepiece's pieces in vocab.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from whisper_zoo import sound
from zoo import _copied, spread

from thalweg.media.source_features import extract

PAD, START, END = 1, 2, 2
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<lang:de>"]
PIECES = [f"▁{chr(97 + i)}" if i % 2 else chr(97 + i) * 2 for i in range(26)]
VOCAB = {token: i for i, token in enumerate([*SPECIAL, *PIECES])}
SIZES: dict[str, Any] = {
    "vocab_size": len(VOCAB), "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 40, "conv_channels": 24,
    "input_feat_per_channel": 16, "max_source_positions": 600, "max_target_positions": 64,
    "tie_word_embeddings": False,
}  # fmt: skip


def make_speech_to_text(directory: Path, **more: Any) -> Path:
    def make(path: Path) -> None:
        config = transformers.Speech2TextConfig(**SIZES | more)
        model = transformers.Speech2TextForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
        spread(model, 7)
        with torch.no_grad():  # sounds must matter
            for layer in model.model.decoder.layers:
                layer.encoder_attn.out_proj.weight.mul_(3)
                layer.encoder_attn.q_proj.weight.mul_(2)
        model.save_pretrained(path)
        generation = {"decoder_start_token_id": START, "eos_token_id": END, "suppress_tokens": [PAD]}  # it has no position
        (path / "generation_config.json").write_text(json.dumps(generation))
        (path / "vocab.json").write_text(json.dumps(VOCAB))
        (path / "sentencepiece.bpe.model").write_bytes(b"")
        (path / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "Speech2TextTokenizer", "eos_token": "</s>"})
        )

    return _copied(("speech2text", json.dumps(more)), make, directory / "speech2text")


def load(path: Path) -> Any:
    kind = transformers.Speech2TextForConditionalGeneration
    return kind.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


def features(wave: np.ndarray) -> torch.Tensor:
    extractor = transformers.Speech2TextFeatureExtractor(feature_size=16, num_mel_bins=16)
    return extractor(wave, sampling_rate=16_000, return_tensors="pt").input_features


@torch.inference_mode()
def greedy(model: Any, wave: np.ndarray, new: int, prompt: tuple[int, ...] = (START,)) -> tuple[list[int], list[float]]:
    """transformers' tokens behind the start token, without its own `generate`, and their log-probabilities. Spectra are from
    this project, because `features` has single precision."""
    mel = extract("speech2text", wave, 16, 600)
    heard, out = model.model.encoder(torch.from_numpy(mel[:, 1 : 1 + int(mel[0, 0])].T.copy())[None]), list(prompt)
    known: list[float] = []
    for _ in range(new):
        logits = model(encoder_outputs=heard, decoder_input_ids=torch.tensor([out])).logits[0, -1]
        scores, logits[PAD] = logits.log_softmax(-1), -np.inf
        out.append(int(logits.argmax()))
        known.append(float(scores[out[-1]]))
        if out[-1] == END:
            break
    return out[len(prompt) :], known


__all__ = ["END", "SIZES", "START", "VOCAB", "features", "greedy", "load", "make_speech_to_text", "sound"]
