"""A small Voxtral Realtime, saved as transformers saves it, with a tokenizer of bytes. For tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from hearing import spread_ears
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

RATE, STEP = 16_000, 1280
BEFORE, DELAY, BUFFER = 32, 3, 10
NAMES = ("<s>", "</s>", "[STREAMING_PAD]", "[STREAMING_WORD]")
IDS = {name: 256 + i for i, name in enumerate(NAMES)}
AUDIO = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "num_mel_bins": 20,
    "head_dim": 12, "sliding_window": 70, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}  # fmt: skip
TEXT = {
    "vocab_size": 272, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 512, "sliding_window": 40, "bos_token_id": IDS["<s>"],
    "eos_token_id": IDS["</s>"], "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
}  # fmt: skip


def make_voxtral_realtime(path: Path) -> Any:
    """The model of transformers, saved."""
    config = transformers.VoxtralRealtimeConfig(audio_config=AUDIO, text_config=TEXT, default_num_delay_tokens=DELAY)
    config.eos_token_id = IDS["</s>"]
    cls = transformers.VoxtralRealtimeForConditionalGeneration
    model = cls._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    spread_ears(model)
    with torch.no_grad():  # tied embeddings: a token must not be its own best successor
        model.lm_head.weight.mul_(0.15)
        model.model.multi_modal_projector.linear_2.weight.mul_(4.5)
        for conv in (model.model.audio_tower.embedder.conv1, model.model.audio_tower.embedder.conv2):
            conv.weight.mul_(3)
    model.generation_config.eos_token_id = IDS["</s>"]
    model.save_pretrained(path)
    write_tokenizer(path)
    (path / "processor_config.json").write_text(
        json.dumps({"feature_extractor": {"feature_size": 20, "global_log_mel_max": 1.5}})
    )
    return model


def write_tokenizer(path: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens(list(NAMES))
    tok.save(str(path / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "bos_token": "<s>"}
    (path / "tokenizer_config.json").write_text(json.dumps(said))


def prompt() -> list[int]:
    """mistral-common's, of a transcript."""
    return [IDS["<s>"], *[IDS["[STREAMING_PAD]"]] * (BEFORE + DELAY)]


def read_features(sound: np.ndarray) -> torch.Tensor:
    """transformers' spectrum of the clip with the silence of mistral-common around it: f32[1, bins, frames]."""
    behind = -sound.size % STEP + (DELAY + 1 + BUFFER) * STEP
    wave = np.pad(sound, (BEFORE * STEP, behind)).astype(np.float32)
    extractor = transformers.VoxtralRealtimeFeatureExtractor(feature_size=20)
    made: torch.Tensor = extractor(wave, sampling_rate=RATE, return_tensors="pt").input_features
    return made


@torch.no_grad()
def transcribe(model: Any, sound: np.ndarray, eos: bool = True) -> list[int]:
    """transformers' tokens after the prompt. eos: an end ends it."""
    ids = prompt()
    model.generation_config.eos_token_id = IDS["</s>"] if eos else None
    out = model.generate(
        input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), do_sample=False,
        input_features=read_features(sound), num_delay_tokens=DELAY,
    )  # fmt: skip
    made: list[int] = out[0, len(ids) :].tolist()
    return made
