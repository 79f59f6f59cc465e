"""A tiny random Moonshine model, made by transformers, with a tokenizer of bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from zoo import _copied, spread

START, END = 256, 257
SIZES: dict[str, Any] = {
    "vocab_size": 264, "hidden_size": 48, "intermediate_size": 80, "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 2, "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4,
    "max_position_embeddings": 64, "bos_token_id": START, "eos_token_id": END, "pad_token_id": END,
    "decoder_start_token_id": START,
}  # fmt: skip


def make_moonshine(directory: Path, **more: Any) -> Path:
    def make(path: Path) -> None:
        config = transformers.MoonshineConfig(**SIZES | more)
        model = transformers.MoonshineForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
        spread(model, 5)
        g = torch.Generator().manual_seed(8)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "conv" in name and p.ndim > 2:
                    p.normal_(0, (30 if "conv1" in name else 1.5) / p[0].numel() ** 0.5, generator=g)
            for layer in model.model.decoder.layers:  # sounds must matter
                layer.encoder_attn.o_proj.weight.mul_(3)
                layer.encoder_attn.q_proj.weight.mul_(6)
        model.save_pretrained(path)
        write_tokenizer(path)

    return _copied(("moonshine", json.dumps(more)), make, directory / "moonshine")


STREAMING: dict[str, Any] = {
    "vocab_size": 264, "hidden_size": 40, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256, "bos_token_id": START, "eos_token_id": END, "pad_token_id": END,
    "decoder_start_token_id": START, "encoder_config": {
        "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 4, "sliding_windows": [[6, 4], [5, 0], [3, 2]],
    },
}  # fmt: skip


def make_streaming(directory: Path, **more: Any) -> Path:
    def make(path: Path) -> None:
        config = transformers.MoonshineStreamingConfig(**{**STREAMING, **more})
        model = transformers.MoonshineStreamingForConditionalGeneration._from_config(config).eval()
        spread(model, 5)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name.endswith("gamma"):
                    p.normal_(0, 0.2, generator=torch.Generator().manual_seed(len(name)))
            for layer in model.model.decoder.layers:  # sounds must matter
                layer.encoder_attn.o_proj.weight.mul_(3)
                layer.encoder_attn.q_proj.weight.mul_(4)
        model.save_pretrained(path)
        write_tokenizer(path)

    return _copied(("moonshine streaming", json.dumps(more)), make, directory / "streaming")


def load_streaming(path: Path) -> Any:
    kind = transformers.MoonshineStreamingForConditionalGeneration
    return kind.from_pretrained(path, dtype=torch.float32).eval()


@torch.inference_mode()
def greedy_streaming(model: Any, wave: np.ndarray, new: int) -> tuple[list[int], list[float]]:
    """As `greedy`, with log-probabilities. Windows apply where a mask is given."""
    padded, real = np.pad(wave, (0, -wave.size % 80)), np.zeros(wave.size + -wave.size % 80, np.int64)
    real[: wave.size] = 1
    heard = model.model.encoder(torch.from_numpy(padded)[None], attention_mask=torch.from_numpy(real)[None])
    state, out, known = heard.last_hidden_state, [START], list[float]()
    for _ in range(new):
        heard.last_hidden_state = state.clone()  # the decoder adds positions to it in place
        logits = model(encoder_outputs=heard, decoder_input_ids=torch.tensor([out])).logits[0, -1]
        out.append(int(logits.argmax()))
        known.append(float(logits.log_softmax(-1).max()))
        if out[-1] == END:
            break
    return out[1:], known


def write_tokenizer(path: Path) -> None:
    tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens(["<s>", "</s>"])
    tok.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))


def load(path: Path) -> Any:
    kind = transformers.MoonshineForConditionalGeneration
    return kind.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


@torch.inference_mode()
def greedy(model: Any, wave: np.ndarray, new: int) -> list[int]:
    """transformers' tokens behind the start token, without its own `generate`."""
    heard, out = model.model.encoder(torch.from_numpy(wave)[None]), [START]
    for _ in range(new):
        logits = model(encoder_outputs=heard, decoder_input_ids=torch.tensor([out])).logits[0, -1]
        out.append(int(logits.argmax()))
        if out[-1] == END:
            break
    return out[1:]
