"""Tiny random Whisper models, made by transformers, with a tokenizer of bytes and the tokens that transcripts begin with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from zoo import _copied, spread

END, START, EN, DE, TRANSLATE, TRANSCRIBE, BEFORE, NO_SPEECH, NO_TIMES = range(256, 265)
TIMES = NO_TIMES + 1
NAMES = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>", "<|startofprev|>",
         "<|nospeech|>", "<|notimestamps|>")  # fmt: skip
BINS, SOURCES = 20, 50
SECONDS = SOURCES * 0.02
"""That such a model hears at once."""
SIZES: dict[str, Any] = {
    "vocab_size": TIMES + SOURCES + 1, "d_model": 48, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 3,
    "decoder_attention_heads": 3, "encoder_ffn_dim": 80, "decoder_ffn_dim": 96, "num_mel_bins": BINS,
    "max_source_positions": SOURCES, "max_target_positions": 64, "pad_token_id": END, "bos_token_id": END, "eos_token_id": END,
    "decoder_start_token_id": START, "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip


def make_whisper(directory: Path, **said: Any) -> Path:
    """said: of generation_config.json."""

    def make(path: Path) -> None:
        model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**SIZES)).eval()
        spread(model, 5)
        with torch.no_grad():  # sounds must matter: as much as the text does
            for layer in model.model.decoder.layers:
                layer.encoder_attn.out_proj.weight.mul_(3)
        model.save_pretrained(path)
        make_tokenizer(path)
        generation = {"eos_token_id": END, "decoder_start_token_id": START, "is_multilingual": True, **said}
        (path / "generation_config.json").write_text(json.dumps(generation))

    return _copied(("whisper", json.dumps(said)), make, directory / "whisper")


def make_tokenizer(path: Path) -> None:
    """tokenizer.json of bytes, the tokens that transcripts begin with, and times."""
    tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens(list(NAMES))
    tok.add_tokens([AddedToken(f"<|{i * 0.02:.2f}|>") for i in range(SOURCES + 1)])
    tok.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": NAMES[0]}))


def sound(seed: int, seconds: float = SECONDS) -> np.ndarray:
    """Tones that come and go, over noise: f32[samples] at 16 kHz."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * 16_000)) / 16_000
    tones = sum(np.sin(2 * np.pi * f * t) * np.sin(2 * np.pi * g * t) for f, g in rng.uniform((100, 0.5), (4000, 5), (4, 2)))
    return (0.2 * tones + 0.05 * rng.normal(size=t.size)).astype(np.float32)


def load(path: Path) -> transformers.WhisperForConditionalGeneration:
    kind = transformers.WhisperForConditionalGeneration
    return kind.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


@torch.inference_mode()
def greedy(model: Any, mel: np.ndarray, ids: list[int], new: int, shape: Any = None) -> list[int]:
    """What transformers' model says, without its own `generate`. shape(ids, logits) -> logits."""
    heard = model.model.encoder(torch.from_numpy(mel)[None])
    out = list(ids)
    for _ in range(new):
        logits = model(encoder_outputs=heard, decoder_input_ids=torch.tensor([out])).logits[:, -1]
        if shape is not None:
            logits = shape(torch.tensor([out]), logits)
        out.append(int(logits.argmax()))
        if out[-1] == END:
            break
    return out[len(ids) :]
