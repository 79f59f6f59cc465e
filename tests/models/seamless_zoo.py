"""Tiny random SeamlessM4T models that transcribe, made by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models
from zoo import _copied, spread

START = END = 3
NAMES = ["<pad>", "<unk>", "<s>", "</s>", "__eng__", "__deu__"]
VOCAB = {token: i for i, token in enumerate([*NAMES, *(f"▁{chr(97 + i)}" for i in range(26))])}
KINDS = {
    "v1": (transformers.SeamlessM4TForSpeechToText, transformers.SeamlessM4TConfig),
    "v2": (transformers.SeamlessM4Tv2ForSpeechToText, transformers.SeamlessM4Tv2Config),
}
SIZES: dict[str, Any] = {
    "vocab_size": len(VOCAB), "hidden_size": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
    "speech_encoder_layers": 2, "speech_encoder_attention_heads": 4, "speech_encoder_intermediate_size": 56,
    "conv_depthwise_kernel_size": 7, "t2u_encoder_layers": 1, "t2u_decoder_layers": 1, "tie_word_embeddings": True,
}  # fmt: skip
NEAR = {"left_max_position_embeddings": 6, "right_max_position_embeddings": 3}


def make_seamless(name: str, directory: Path, **more: Any) -> Path:
    kind, config_class = KINDS[name]

    def make(path: Path) -> None:
        config = config_class(**SIZES, **(NEAR if name == "v2" else {}), **more)
        model = kind._from_config(config, attn_implementation="eager").eval()
        spread(model, 4)
        g = torch.Generator().manual_seed(6)
        with torch.no_grad():
            for n, p in model.named_parameters():
                if "conv" in n and p.ndim > 2:
                    p.normal_(0, 1.5 / p[0].numel() ** 0.5, generator=g)
            for n, b in model.named_buffers():
                if n.endswith("running_mean"):
                    b.normal_(0, 0.3, generator=g)
                elif n.endswith("running_var"):
                    b.uniform_(0.5, 2, generator=g)
            for layer in model.text_decoder.layers:  # sounds must matter
                layer.cross_attention.out_proj.weight.mul_(4)
                layer.cross_attention.q_proj.weight.mul_(3)
        model.save_pretrained(path)
        tok = Tokenizer(models.WordLevel(VOCAB, unk_token="<unk>"))
        tok.decoder = decoders.Metaspace()
        tok.add_special_tokens(NAMES)
        tok.save(str(path / "tokenizer.json"))
        (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
        (path / "generation_config.json").write_text(json.dumps({"eos_token_id": END, "decoder_start_token_id": START}))

    return _copied((name, json.dumps(more)), make, directory / name)


def load(name: str, path: Path) -> Any:
    return KINDS[name][0].from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa").eval()  # reads masks of chunks


def features(wave: np.ndarray) -> Any:
    return transformers.SeamlessM4TFeatureExtractor()(wave, sampling_rate=16_000, return_tensors="pt")


@torch.inference_mode()
def greedy(model: Any, wave: np.ndarray, prompt: list[int], new: int) -> tuple[list[int], list[float]]:
    """transformers' tokens behind a prompt, and their log-probabilities."""
    heard, out = model.speech_encoder(features(wave).input_features), list(prompt)
    known: list[float] = []
    for _ in range(new):
        state = model.text_decoder(input_ids=torch.tensor([out]), encoder_hidden_states=heard.last_hidden_state)
        scores = model.lm_head(state.last_hidden_state)[0, -1].log_softmax(-1)
        out.append(int(scores.argmax()))
        known.append(float(scores.max()))
        if out[-1] == END:
            break
    return out[len(prompt) :], known
