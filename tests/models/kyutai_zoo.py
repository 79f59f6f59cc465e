"""A small Kyutai speech-to-text model, saved as transformers saves it, with a tokenizer of bytes. For tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from zoo import spread

RATE, STEP = 2400, 192
"""Of the codec: samples per second, and of a frame."""
BEFORE, DELAY = 0.25, 0.4
"""Seconds of silence."""
NAMES = ("<s>", "</s>", "<pad>")
IDS = {name: 256 + i for i, name in enumerate(NAMES)}
VOCAB, BOOKS, ROWS = 272, 4, 33
COMMON = 126
"""A token of many transcripts."""
BEHIND = VOCAB + 40
"""A row of the embedding that is no token."""
CODEC: dict[str, Any] = {
    "model_type": "mimi", "hidden_size": 16, "num_filters": 4, "num_residual_layers": 2, "upsampling_ratios": [8, 4, 3],
    "codebook_size": 32, "codebook_dim": 8, "vector_quantization_hidden_dimension": 8, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 24, "sliding_window": 12,
    "num_quantizers": BOOKS, "upsample_groups": 16, "sampling_rate": RATE, "frame_rate": 12.5, "max_position_embeddings": 200,
}  # fmt: skip
TEXT: dict[str, Any] = {
    "vocab_size": VOCAB, "codebook_vocab_size": ROWS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "ffn_dim": 96, "num_codebooks": BOOKS, "audio_bos_token_id": 32, "bos_token_id": BEHIND,
    "audio_pad_token_id": VOCAB + BOOKS * ROWS, "pad_token_id": IDS["<pad>"], "sliding_window": 20,
    "max_position_embeddings": 256,
}  # fmt: skip


def make_kyutai(path: Path, **more: Any) -> Any:
    """The model of transformers, saved."""
    config = transformers.KyutaiSpeechToTextConfig(**{**TEXT, **more}, codec_config=CODEC)
    cls = transformers.KyutaiSpeechToTextForConditionalGeneration
    model = cls._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    spread(model, 5)
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for key, p in (*model.named_parameters(), *model.named_buffers()):
            if key.endswith(("embed_tokens.weight", "embed_sum", "lm_head.weight")):
                p.normal_(0, 1, generator=g)
            elif key.endswith("cluster_usage"):
                p.uniform_(0.5, 3, generator=g)
            elif key.endswith("layer_scale.scale"):
                p.uniform_(0.3, 1, generator=g)
            elif p.ndim > 2:
                p.normal_(0, 1.4 / max(1, p[0].numel()) ** 0.5, generator=g)
        swapped = [IDS["</s>"], COMMON]  # no end of a transcript
        model.lm_head.weight[swapped] = model.lm_head.weight[swapped[::-1]]
    model.save_pretrained(path)
    write_tokenizer(path)
    (path / "preprocessor_config.json").write_text(json.dumps(json.loads(extractor().to_json_string())))
    return model


def extractor() -> Any:
    cls = transformers.KyutaiSpeechToTextFeatureExtractor
    return cls(sampling_rate=RATE, audio_delay_seconds=DELAY, audio_silence_prefix_seconds=BEFORE)


def write_tokenizer(path: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens(list(NAMES))
    tok.save(str(path / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "bos_token": "<s>", "pad_token": "<pad>"}
    (path / "tokenizer_config.json").write_text(json.dumps(said))


@torch.no_grad()
def transcribe(model: Any, sound: np.ndarray, window: int | None = None) -> list[int]:
    """transformers' tokens after the first one. sound: f32[samples] at RATE. window: frames that its codec encodes at once."""
    inputs = extractor()(sound, sampling_rate=RATE, return_tensors="pt")
    model.generation_config.audio_window_size = window
    model.codec_model.generation_config.use_cache = True
    out = model.generate(input_values=inputs["input_values"], do_sample=False)
    made: list[int] = out[0, 1:].tolist()
    return made
