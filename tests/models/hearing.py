"""Small models that hear, saved as transformers saves them, with a tokenizer and a template that shows sounds and images. For
tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import seeing
import seeing_parts
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn import functional
from zoo import spread

RATE = 16_000
NAMES = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>", "<|vision_start|>",
    "<|image_pad|>", "<|vision_end|>", "<|video_pad|>",
)  # fmt: skip
IDS = {name: 256 + i for i, name in enumerate(NAMES)}
TEXT = {**seeing_parts.TEXT, "eos_token_id": IDS["<|im_end|>"]}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m.content %}{% if p.type == 'audio' %}<|audio_bos|><|AUDIO|>"
    "<|audio_eos|>{% elif p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
EAR = {
    "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "num_mel_bins": 20,
}  # fmt: skip


@dataclass(frozen=True)
class Hearing:
    """config: of the whole model. architecture: of transformers. features: settings of its feature extractor."""

    config: Callable[[], Any]
    architecture: str
    features: dict[str, Any]
    extractor: str = "WhisperFeatureExtractor"
    padding: str = "max_length"
    image: str = ""
    """A model of `seeing` whose image processor it has."""
    extra: dict[str, Any] = field(default_factory=dict)


def _config(name: str, text: dict[str, Any], encoder: dict[str, Any], **more: Any) -> Callable[[], Any]:
    ids = {"audio_token_id": IDS["<|AUDIO|>"], "tie_word_embeddings": False}
    return lambda: getattr(transformers, name)(text_config={**TEXT, **text}, audio_config=encoder, **ids, **more)


def _omni(name: str, text: dict[str, Any], encoder: dict[str, Any], eye: dict[str, Any]) -> Callable[[], Any]:
    ids = {
        "audio_token_id": IDS["<|AUDIO|>"], "image_token_id": IDS["<|image_pad|>"], "video_token_id": IDS["<|video_pad|>"],
        "audio_start_token_id": IDS["<|audio_bos|>"], "audio_end_token_id": IDS["<|audio_eos|>"],
        "vision_start_token_id": IDS["<|vision_start|>"],
    }  # fmt: skip
    return lambda: getattr(transformers, name)(
        text_config={**TEXT, **text}, audio_config=encoder, vision_config=eye, tie_word_embeddings=False, **ids
    )


FAMILIES: dict[str, Hearing] = {
    "qwen2-audio": Hearing(
        _config("Qwen2AudioConfig", {"model_type": "qwen2"}, EAR | {"max_source_positions": 100}),
        "Qwen2AudioForConditionalGeneration", {"feature_size": 20, "chunk_length": 2},
    ),
    "voxtral": Hearing(
        _config("VoxtralConfig", {"model_type": "llama"}, {
            "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_mel_bins": 20,
            "max_source_positions": 100,
        }),
        "VoxtralForConditionalGeneration", {"feature_size": 20, "chunk_length": 2},
    ),
    "audio-flamingo3": Hearing(
        _config("AudioFlamingo3Config", {"model_type": "qwen2"}, {
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "num_mel_bins": 20,
            "max_source_positions": 100,
        }),
        "AudioFlamingo3ForConditionalGeneration", {"feature_size": 20, "chunk_length": 2},
    ),
    "music-flamingo": Hearing(
        _config("MusicFlamingoConfig", {"model_type": "qwen2"}, {
            "model_type": "audioflamingo3_encoder", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_mel_bins": 20, "max_source_positions": 100,
        }, audio_bos_token_id=IDS["<|audio_bos|>"], audio_eos_token_id=IDS["<|audio_eos|>"]),
        "MusicFlamingoForConditionalGeneration", {"feature_size": 20, "chunk_length": 2},
    ),
    "glm-asr": Hearing(
        _config("GlmAsrConfig", {"model_type": "llama"}, {
            "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_mel_bins": 20,
        }),
        "GlmAsrForConditionalGeneration", {"feature_size": 20, "chunk_length": 2},
    ),
    "qwen3-asr": Hearing(
        _config("Qwen3ASRConfig", {"model_type": "qwen3"},
                EAR | {"downsample_hidden_size": 12, "output_dim": 48, "n_window": 50, "n_window_infer": 200,
                       "max_position_embeddings": 13}),
        "Qwen3ASRForConditionalGeneration", {"feature_size": 20}, "Qwen3ASRFeatureExtractor", "longest",
    ),
    "qwen2.5-omni": Hearing(
        _omni("Qwen2_5OmniThinkerConfig",
              {"rope_parameters": {**seeing_parts.MROPE, "mrope_section": [2, 2, 2]}, "head_dim": 12},
              EAR | {"n_window": 20, "output_dim": 48},
              seeing_parts.QWEN | {"fullatt_block_indexes": [1], "window_size": 16}),
        "Qwen2_5OmniForConditionalGeneration", {"feature_size": 20, "chunk_length": 4}, image="qwen2.5-vl",
    ),
    "qwen3-omni": Hearing(
        _omni("Qwen3OmniMoeThinkerConfig",
              {"rope_parameters": seeing_parts.MROPE, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
              EAR | {"n_window": 50, "n_window_infer": 200, "output_dim": 48, "downsample_hidden_size": 12},
              seeing_parts.QWEN | {"deepstack_visual_indexes": [0, 2], "num_position_embeddings": 36}),
        "Qwen3OmniMoeForConditionalGeneration", {"feature_size": 20}, padding="longest", image="qwen3-vl",
    ),
}  # fmt: skip

APART = ("audio-flamingo3", "glm-asr", "music-flamingo")
"""Each part of a long sound is one to them."""


def thinks(name: str) -> bool:
    return name.endswith("omni")


def make(name: str, path: Path) -> Any:
    """The model of transformers, saved."""
    family = FAMILIES[name]
    config = family.config()
    cls = family.architecture.replace("ForConditional", "ThinkerForConditional") if thinks(name) else family.architecture
    model = getattr(transformers, cls)._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    spread_ears(model)
    model.save_pretrained(path)
    if thinks(name):
        _as_published(path, family, config)
    settings(name, path)
    write_tokenizer(path)
    return model


def write_tokenizer(path: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens(list(NAMES))
    tok.save(str(path / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(said))


@torch.no_grad()
def spread_ears(model: Any) -> None:
    """`spread`, with convolutions whose outputs neither vanish nor explode."""
    spread(model, 7)
    g = torch.Generator().manual_seed(8)
    for name, p in model.named_parameters():
        if "conv" in name and p.ndim > 2:
            p.normal_(0, 1.2 / p[0].numel() ** 0.5, generator=g)


def features(name: str) -> Any:
    """transformers' own."""
    family = FAMILIES[name]
    return getattr(transformers, family.extractor)(**family.features)


def settings(name: str, path: Path) -> None:
    """As Omni's files have them, all in one."""
    said = json.loads(features(name).to_json_string())
    said.pop("mel_filters", None)
    if FAMILIES[name].image:
        said |= json.loads(seeing.processor(FAMILIES[name].image).to_json_string())
    (path / "preprocessor_config.json").write_text(json.dumps(said))


def _as_published(path: Path, family: Hearing, config: Any) -> None:
    """What published models are: a thinker, and beside it what speaks."""
    from safetensors.torch import load_file, save_file

    (file,) = path.glob("*.safetensors")
    tensors = {f"thinker.{k}": v for k, v in load_file(file).items()}
    extra = {"talker.x.weight": torch.ones(2), "code2wav.y.weight": torch.ones(2), "token2wav.z.weight": torch.ones(2)}
    save_file(tensors | extra, file)
    thinker = json.loads(config.to_json_string(use_diff=False))
    rope = thinker["text_config"].pop("rope_parameters")
    thinker["text_config"] |= {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {
            "interleaved": True,
            "mrope_section": rope["mrope_section"],
            "rope_type": "default",
            "type": "default",
        },
    }
    whole = {
        "architectures": [family.architecture], "model_type": config.model_type.removesuffix("_thinker"),
        "thinker_config": thinker, "talker_config": {"model_type": "x"},
        "enable_audio_output": True,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(whole))


def sound(seconds: float, seed: int = 0) -> np.ndarray:
    """Tones that come and go, with noise: f32[samples]."""
    n = int(seconds * RATE)
    rng, t = np.random.default_rng(seed), np.arange(n) / RATE
    tones = [np.sin(2 * np.pi * f * t) * (1 + np.sin(2 * np.pi * g * t)) for f, g in rng.uniform((80, 1), (3000, 9), (4, 2))]
    made: np.ndarray = (0.1 * sum(tones) + 0.02 * rng.normal(size=n)).astype(np.float32)
    return made


def heard(name: str, sounds: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """What transformers' model takes of sounds."""
    family, extractor = FAMILIES[name], features(name)
    if name == "voxtral":
        parts = []
        for wave in sounds:
            made = extractor(
                wave, sampling_rate=RATE, padding=True, truncation=False, pad_to_multiple_of=2 * RATE, return_tensors="pt"
            )
            parts.append(made["input_features"].reshape(20, -1, 200).transpose(0, 1))
        return {"input_features": torch.cat(parts)}
    said = {"padding": family.padding, "truncation": family.padding == "max_length", "return_attention_mask": True}
    if name in APART:
        sounds = [wave[at : at + 2 * RATE] for wave in sounds for at in range(0, wave.size, 2 * RATE)]
    found = [extractor(wave, sampling_rate=RATE, return_tensors="pt", **said) for wave in sounds]  # as if each came alone
    long = max(each["input_features"].shape[-1] for each in found)
    mels, masks = (
        torch.cat([functional.pad(each[k], (0, long - each[k].shape[-1])) for each in found])
        for k in ("input_features", "attention_mask")
    )
    return {
        "input_features": mels,
        "input_features_mask" if name in ("qwen3-asr", *APART) else "feature_attention_mask": masks,
    }


def given(name: str, ids: list[int], sounds: list[np.ndarray], images: list[Any]) -> dict[str, torch.Tensor]:
    """What transformers' model is asked with: a prompt whose placeholders are expanded, its sounds and images."""
    out = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    if sounds:
        out |= heard(name, sounds)
    if images:
        made = seeing.processor(FAMILIES[name].image)(images=images, return_tensors="np")
        out |= {k: torch.from_numpy(np.asarray(made[k])) for k in ("pixel_values", "image_grid_thw")}
    return out


@torch.no_grad()
def greedy(model: Any, name: str, ids: list[int], sounds: list[np.ndarray], images: list[Any], new: int) -> list[int]:
    """transformers' tokens, those that end a text too."""
    model.generation_config.eos_token_id = None
    out = model.generate(**given(name, ids, sounds, images), max_new_tokens=new, do_sample=False)
    tokens: list[int] = out[0, len(ids) :].tolist()
    return tokens


@torch.no_grad()
def scores(model: Any, name: str, ids: list[int], sounds: list[np.ndarray], images: list[Any]) -> np.ndarray:
    """transformers' log probabilities of the prompt's tokens, from the second."""
    logits = model(**given(name, ids, sounds, images)).logits[0, :-1].log_softmax(-1)
    made: np.ndarray = logits.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()
    return made
