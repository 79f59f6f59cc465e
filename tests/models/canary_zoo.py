"""Tiny random models of a FastConformer and a decoder with cross attention, made by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from parakeet_zoo import ENCODER, move
from tokenizers import Tokenizer, decoders, models
from whisper_zoo import sound
from zoo import _copied, spread

END = 3
TOKENS = [
    "<unk>", "<pad>", "<bos>", "<eos>", "▁", "<|startofcontext|>", "<|startoftranscript|>", "<|emo:undefined|>", "<|en|>",
    "<|de|>", "<|pnc|>", "<|noitn|>", "<|notimestamp|>", "<|nodiarize|>",
]  # fmt: skip
PIECES = [f"▁{chr(97 + i)}" if i % 2 else chr(97 + i) * 2 for i in range(26)]
VOCAB = {token: i for i, token in enumerate([*TOKENS, *PIECES])}
DECODER: dict[str, Any] = {
    "vocab_size": len(VOCAB), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64, "head_dim": 8, "num_key_value_heads": 4,
}  # fmt: skip


def write_tokenizer(path: Path) -> None:
    tok = Tokenizer(models.WordLevel(VOCAB, unk_token="<unk>"))
    tok.decoder = decoders.Metaspace()
    tok.add_special_tokens([token for token in TOKENS if token.startswith("<")])
    tok.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>", "pad_token": "<pad>"}))


def make_canary(name: str, directory: Path, **more: Any) -> Path:
    def make(path: Path) -> None:
        if name == "canary":
            config = transformers.CanaryConfig(
                encoder_config={**ENCODER, "scale_input": False}, decoder_config=DECODER, vocab_size=len(VOCAB), **more
            )
        else:
            encoder = {**ENCODER, "hidden_size": 48, "scale_input": False}
            config = transformers.CohereAsrConfig(encoder_config=encoder, **{**DECODER, **more})
        model = kind(name)._from_config(config, attn_implementation="eager").eval()
        spread(model, 4)
        move(model.model.encoder)
        with torch.no_grad():  # sounds must matter
            for layer in model.model.decoder.layers:
                layer.encoder_attn.o_proj.weight.mul_(5)
                layer.encoder_attn.q_proj.weight.mul_(4)
            ids = torch.randint(0, len(VOCAB), (1, 40), generator=torch.Generator().manual_seed(2))
            heard = model(features(sound(9, 2.0)).input_features, decoder_input_ids=ids).logits[0]
            model.proj_out.bias.sub_(heard.mean(0))  # so that each token is the most probable one somewhere
            model.proj_out.bias[: len(TOKENS)] -= 6  # except those of prompts
        model.save_pretrained(path)
        write_tokenizer(path)

    return _copied((name, json.dumps(more)), make, directory / name)


def kind(name: str) -> Any:
    return transformers.CanaryForConditionalGeneration if name == "canary" else transformers.CohereAsrForConditionalGeneration


def load(name: str, path: Path) -> Any:
    return kind(name).from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


def features(wave: np.ndarray) -> Any:
    """Without noise added to the samples."""
    extractor = transformers.CohereAsrFeatureExtractor(feature_size=16, dither=0.0)
    return extractor(wave, sampling_rate=16_000, return_tensors="pt")


@torch.inference_mode()
def greedy(model: Any, wave: np.ndarray, prompt: list[int], new: int) -> tuple[list[int], list[float]]:
    """transformers' tokens behind a prompt, and their log-probabilities."""
    inputs, out = features(wave), list(prompt)
    known: list[float] = []
    encoded = model.model.encoder(inputs.input_features, attention_mask=inputs.attention_mask)
    for _ in range(new):
        logits = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([out])).logits[0, -1]
        out.append(int(logits.argmax()))
        known.append(float(logits.log_softmax(-1).max()))
        if out[-1] == END:
            break
    return out[len(prompt) :], known
