"""Tiny random CTC models of samples, made by transformers, with tokenizers of characters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from parakeet_zoo import collapse
from whisper_zoo import sound
from zoo import _copied, spread

VOCAB = {token: i for i, token in enumerate(["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAONIHSRDLU'"])}
SMALL: dict[str, Any] = {
    "vocab_size": len(VOCAB), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "conv_dim": [16] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
STABLE = {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "wav2vec2": ("Wav2Vec2", {}),
    "wav2vec2-large": ("Wav2Vec2", STABLE),
    "mms": ("Wav2Vec2", {**STABLE, "adapter_attn_dim": 6}),
    "hubert": ("Hubert", {}),
    "hubert-large": ("Hubert", {**STABLE, "feat_proj_layer_norm": False, "num_conv_pos_embeddings": 15}),
    "hubert-batch-norm": ("Hubert", {"conv_pos_batch_norm": True}),
    "wavlm": ("WavLM", {"num_buckets": 32, "max_bucket_distance": 40}),
    "wavlm-large": ("WavLM", {**STABLE, "num_buckets": 16, "max_bucket_distance": 20}),
    "unispeech": ("UniSpeech", {}),
    "unispeech-sat": ("UniSpeechSat", {}),
    "sew": ("SEW", {"conv_dim": [16] * 3, "conv_kernel": [10, 8, 8], "conv_stride": [5, 8, 8], "mask_time_prob": 0.0}),
    "sew-projected": (
        "SEW",
        {
            "conv_dim": [16, 16, 32],
            "conv_kernel": [10, 8, 8],
            "conv_stride": [5, 8, 8],
            "squeeze_factor": 3,
            "num_conv_pos_embeddings": 15,
        },
    ),
    "sew-d": (
        "SEWD",
        {
            "conv_dim": [16] * 3,
            "conv_kernel": [10, 8, 8],
            "conv_stride": [5, 8, 8],
            "hidden_act": "gelu",
            "position_buckets": 8,
            "max_position_embeddings": 40,
        },
    ),
    "sew-d-unbucketed": (
        "SEWD",
        {
            "conv_dim": [16, 16, 32],
            "conv_kernel": [10, 8, 8],
            "conv_stride": [5, 8, 8],
            "squeeze_factor": 3,
            "position_buckets": -1,
            "max_position_embeddings": 12,
        },
    ),
    "conformer": ("Wav2Vec2Conformer", {"conv_depthwise_kernel_size": 5}),
    "conformer-rotary": (
        "Wav2Vec2Conformer",
        {
            **STABLE,
            "conv_depthwise_kernel_size": 5,
            "position_embeddings_type": "rotary",
        },
    ),
    "conformer-placeless": ("Wav2Vec2Conformer", {"conv_depthwise_kernel_size": 5, "position_embeddings_type": None}),
    "data2vec": ("Data2VecAudio", {"num_conv_pos_embeddings": 3, "conv_pos_kernel_size": 7}),
}


def make_wav2vec(name: str, directory: Path, old: bool = False, **more: Any) -> Path:
    """old: with the names of weight norms that older versions wrote."""
    kind, settings = CASES[name]

    def make(path: Path) -> None:
        config = getattr(transformers, f"{kind}Config")(**{**SMALL, **settings, **more})
        model = getattr(transformers, f"{kind}ForCTC")._from_config(config).eval()
        spread(model, 5)
        g = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for key, p in (*model.named_parameters(), *model.named_buffers()):
                if "conv" in key and p.ndim > 2:
                    p.normal_(0, 2 / max(1, p[0].numel()) ** 0.5, generator=g)
                elif "original0" in key or key.endswith("gru_rel_pos_const"):
                    p.uniform_(0.5, 2, generator=g)
                elif key.endswith("rel_attn_embed.weight"):
                    p.normal_(0, 1, generator=g)
                elif key == "lm_head.weight":
                    p.normal_(0, 2, generator=g)
                elif key.endswith("running_var"):
                    p.uniform_(0.5, 2, generator=g)
            heard = model(torch.from_numpy(sound(9, 3.0))[None]).logits[0]
            model.lm_head.bias.sub_(heard.mean(0))  # so that each class is the most probable one somewhere
        model.save_pretrained(path)
        transformers.Wav2Vec2FeatureExtractor().save_pretrained(path)
        (path / "vocab.json").write_text(json.dumps(VOCAB))
        (path / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>", "unk_token": "<unk>"}))
        if old:
            rename_weight_norms(path / "model.safetensors")

    return _copied((name, old, json.dumps(more)), make, directory / name)


def rename_weight_norms(file: Path) -> None:
    from safetensors.torch import load_file, save_file

    names = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
    tensors = load_file(file)
    for ours, theirs in names.items():
        tensors = {key.replace(ours, theirs): value for key, value in tensors.items()}
    save_file(tensors, file, {"format": "pt"})


def load(name: str, path: Path) -> Any:
    kind = getattr(transformers, f"{CASES[name][0]}ForCTC")
    return kind.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


@torch.inference_mode()
def frames_of(model: Any, path: Path, wave: np.ndarray) -> list[int]:
    """The most probable class of each frame."""
    extractor = transformers.Wav2Vec2FeatureExtractor.from_pretrained(path)
    inputs = extractor(wave, sampling_rate=16_000, return_tensors="pt").input_values
    return model(inputs).logits[0].argmax(-1).tolist()


def transcribe(model: Any, path: Path, wave: np.ndarray) -> list[tuple[int, int, int]]:
    return collapse(frames_of(model, path, wave), 0)
