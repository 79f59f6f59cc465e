"""Converts config.json to one spelling. Models of several modalities have a separate object for their text part, and omit the
defaults of their class. Older families have other names for sizes."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from thalweg.checkpoint import llava
from thalweg.errors import CheckpointError

OUTER = (
    "architectures", "auto_map", "bos_token_id", "dtype", "eos_token_id", "pad_token_id", "quantization_config",
    "compression_config", "quantization", "tie_word_embeddings", "torch_dtype", "transformers_version",
)  # fmt: skip
"""Keys of the whole model. They apply at the top level, outside the text part."""
LIMITS = "time_step_limit"
"""Key of a list that may contain infinity. JSON lacks infinity, so files have null."""
TEXT_ENDS = "text_eos_token_id"
"""Key for the text part's `eos_token_id` if the whole model has another. See `checkpoint.config.eos_ids`."""
ROWS = "embedding_rows"
"""Key for the rows of an embedding, where it has more than the output matrix. `vocab_size` is that of the output."""
BESIDE = "beside_text"
"""Key for the rest of the file outside the text part, for readers of the other parts."""
_GPT = {
    "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
}  # fmt: skip
_FALCON = {**_GPT, "n_head_kv": "num_kv_heads"}
_TELECHAT = {
    **_GPT, "ffn_hidden_size": "intermediate_size", "seq_length": "max_position_embeddings",
    "layer_norm_epsilon": "rms_norm_eps",
}  # fmt: skip
_WHISPER = {
    "d_model": "hidden_size", "decoder_attention_heads": "num_attention_heads", "decoder_layers": "num_hidden_layers",
    "max_target_positions": "max_position_embeddings",
}  # fmt: skip
_T5 = {
    "d_model": "hidden_size", "num_heads": "num_attention_heads", "num_decoder_layers": "num_hidden_layers",
    "num_layers": "num_hidden_layers", "n_positions": "max_position_embeddings", "d_kv": "head_dim",
    "layer_norm_epsilon": "rms_norm_eps",
}  # fmt: skip
_BART = {
    "d_model": "hidden_size", "decoder_attention_heads": "num_attention_heads", "decoder_layers": "num_hidden_layers",
}  # fmt: skip
_KIMI = {
    "model_max_length": "max_position_embeddings", "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts", "num_expert_group": "n_group", "moe_renormalize": "norm_topk_prob",
}  # fmt: skip
NAMES: Mapping[str, Mapping[str, str]] = {
    "distilbert": {
        "dim": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers",
        "hidden_dim": "intermediate_size", "activation": "hidden_act",
    },
    "baichuan": {"model_max_length": "max_position_embeddings"},
    "chameleon": {"vq_config": "vision_config"},
    "exaone": {"num_layers": "num_hidden_layers"},
    **{key: {"attention_head_dim": "head_dim"} for key in ("hunyuan_vl", "hunyuan_vl_text")},
    "kosmos_2_text_model": {
        "embed_dim": "hidden_size", "layers": "num_hidden_layers", "attention_heads": "num_attention_heads",
    },
    "phi3_v": {"img_processor": "vision_config"},
    "phi4mm": {"embd_layer": "vision_config", "audio_processor": "audio_config"},
    "bloom": {"n_embed": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers",
              "seq_length": "max_position_embeddings"},
    "mpt": {"d_model": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers",
            "max_seq_len": "max_position_embeddings"},
    "chatglm": {
        "num_layers": "num_hidden_layers", "padded_vocab_size": "vocab_size", "ffn_hidden_size": "intermediate_size",
        "seq_length": "max_position_embeddings", "layernorm_epsilon": "rms_norm_eps", "kv_channels": "head_dim",
    },
    "step3p5": {"num_attention_groups": "num_key_value_heads"},
    "longcat_flash": {
        "num_layers": "num_hidden_layers", "ffn_hidden_size": "intermediate_size", "moe_topk": "num_experts_per_tok",
        "expert_ffn_hidden_size": "moe_intermediate_size",
    },
    "dbrx": {"d_model": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers",
             "max_seq_len": "max_position_embeddings"},
    "codegen": _GPT,
    "ctrl": _GPT,
    "gpt2": _GPT,
    "gpt_bigcode": _GPT,
    "gptj": _GPT,
    "jais": _GPT,
    "openai-gpt": _GPT,
    "gpt_neo": {"num_heads": "num_attention_heads", "num_layers": "num_hidden_layers"},
    "qwen": {"rotary_emb_base": "rope_theta", "layer_norm_epsilon": "rms_norm_eps", "kv_channels": "head_dim"},
    **dict.fromkeys(("RefinedWeb", "RefinedWebModel"), _FALCON),
    **dict.fromkeys(("telechat", "telechat2"), _TELECHAT),
    "nomic_bert": {
        "max_trained_positions": "max_position_embeddings", **_GPT, "n_inner": "intermediate_size",
        "layer_norm_epsilon": "layer_norm_eps",
    },
    "xglm": {"d_model": "hidden_size", "attention_heads": "num_attention_heads", "num_layers": "num_hidden_layers"},
    "xlstm": {
        "embedding_dim": "hidden_size", "num_blocks": "num_hidden_layers", "num_heads": "num_attention_heads",
    },
    "rwkv": {"context_length": "max_position_embeddings"},
    "bailing_hybrid": _KIMI,
    "kimi_linear": _KIMI,
    **dict.fromkeys(("speech_to_text", "whisper"), _WHISPER),
    "moonshine": {
        f"decoder_num_{name}": f"num_{name}" for name in ("attention_heads", "hidden_layers", "key_value_heads")
    },
    "led": {**_BART, "max_decoder_position_embeddings": "max_position_embeddings"},
    **dict.fromkeys(("longt5", "mt5", "switch_transformers", "t5", "umt5"), _T5),
    **dict.fromkeys(
        ("bart", "blenderbot", "blenderbot-small", "m2m_100", "marian", "mbart", "mvp", "pegasus", "pegasus_x", "plbart",
         "seamless_m4t", "seamless_m4t_v2",
         "trocr", "bigbird_pegasus"), _BART
    ),
}  # fmt: skip
"""model_type -> {its name: common name}. If several names have one meaning, the first applies."""
SHORTER: Mapping[str, Mapping[str, str]] = {"qwen": {"seq_length": "max_position_embeddings"}}
"""The same of names that apply where both are given. Longer sequences than QWen's `seq_length` have other frequencies."""
_ENDLESS = {"num_attention_heads": 1, "max_position_embeddings": 32_768}
_CANARY = {
    "vocab_size": 16_384, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8, "num_attention_heads": 8,
    "max_position_embeddings": 1024,
}  # fmt: skip
_WAV2VEC = {
    "vocab_size": 32, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "max_position_embeddings": 1,
}  # fmt: skip
_SEAMLESS = {
    "vocab_size": 256_102, "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 24,
    "max_position_embeddings": 4096, "speech_encoder_layers": 24, "speech_encoder_attention_heads": 16,
    "speech_encoder_intermediate_size": 4096,
    **{f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in
       (("layers", 24), ("ffn_dim", 8192), ("attention_heads", 16))},
}  # fmt: skip
_W2V_BERT = {
    "vocab_size": 32, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
    "max_position_embeddings": 1,
}  # fmt: skip
ABSENT: Mapping[str, Mapping[str, Any]] = {
    "wav2vec2-bert": _W2V_BERT,
    "mamba": _ENDLESS,
    "mamba2": _ENDLESS,
    "longt5": {"max_position_embeddings": 4096},
    "rwkv": _ENDLESS,
    "rwkv7": _ENDLESS,
    "xlstm": _ENDLESS,
    "falcon_mamba": _ENDLESS,
    "bloom": {"max_position_embeddings": 2048},
    **{name: {"max_position_embeddings": 512} for name in ("mt5", "switch_transformers", "t5", "umt5")},
    **{name: {"max_position_embeddings": 2048} for name in ("falcon", "RefinedWeb", "RefinedWebModel")},
    "vits": {
        "vocab_size": 38, "hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 2, "max_position_embeddings": 4096,
    },
    "recurrent_gemma": {"max_position_embeddings": 8192},
    **dict.fromkeys(
        ("data2vec-audio", "hubert", "sew", "unispeech", "unispeech-sat", "wav2vec2", "wav2vec2-conformer", "wavlm"),
        _WAV2VEC,
    ),
    "sew-d": {**_WAV2VEC, "max_position_embeddings": 512},
    "cohere_asr": _CANARY,
    "moonshine_streaming": {
        "vocab_size": 32_768, "hidden_size": 320, "intermediate_size": 1280, "num_hidden_layers": 6, "num_attention_heads": 8,
        "max_position_embeddings": 4096,
    },
    "seamless_m4t": {**_SEAMLESS, "max_position_embeddings": 1024},
    "seamless_m4t_v2": _SEAMLESS,
    "speech_to_text": {
        "hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 6, "max_position_embeddings": 1024,
        "encoder_layers": 12, "encoder_attention_heads": 4, "encoder_ffn_dim": 2048, "decoder_layers": 6,
        "decoder_attention_heads": 4, "decoder_ffn_dim": 2048,
    },
    "gemma3_text": {
        "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072,
        "rope_local_base_freq": 1e4,
    },
}  # fmt: skip
"""model_type -> sizes that published files omit, from the family's configuration class. Models without attention have no
longest sequence: the number here is the default, which hf_overrides may change."""


_PERSIMMON = {
    "vocab_size": 262_144, "hidden_size": 4096, "intermediate_size": 16_384, "num_hidden_layers": 36, "num_attention_heads": 64,
    "max_position_embeddings": 16_384,
}  # fmt: skip
_LLAMA = {
    "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "max_position_embeddings": 2048,
}  # fmt: skip
_MISTRAL = {
    "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131_072,
}  # fmt: skip
_QWEN2 = {
    "vocab_size": 151_936, "hidden_size": 4096, "intermediate_size": 22_016, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 32_768,
}  # fmt: skip
INSIDE: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("blip-2", "opt"): {
        "vocab_size": 50_272, "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072, "num_attention_heads": 12,
        "word_embed_proj_dim": 768, "max_position_embeddings": 2048,
    },
    ("blip-2", "t5"): {"vocab_size": 32_128},
    ("blip", "blip_text_model"): {
        "vocab_size": 30_524, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 8,
        "max_position_embeddings": 512, "is_decoder": True,
    },
    ("canary", "canary_decoder"): _CANARY,
    ("clip", "clip_text_model"): {
        "vocab_size": 49_408, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8,
        "max_position_embeddings": 77,
    },
    ("fun_asr_nano", "qwen3"): {
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "max_position_embeddings": 40_960, "head_dim": 128, "vocab_size": 151_936,
    },
    ("fuyu", "persimmon"): _PERSIMMON,
    ("glmasr", "llama"): {
        "vocab_size": 59_264, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
    },
    ("idefics2", "mistral"): {**_MISTRAL, "max_position_embeddings": 32_768, "sliding_window": 4096},
    ("idefics3", "llama"): _LLAMA,
    ("instructblip", "llama"): _LLAMA,
    ("instructblipvideo", "llama"): _LLAMA,
    ("instructblip", "t5"): {"vocab_size": 32_128},
    ("internvl", "qwen2"): _QWEN2,
    ("kosmos-2", "kosmos_2_text_model"): {
        "vocab_size": 65_037, "embed_dim": 2048, "layers": 24, "attention_heads": 32, "max_position_embeddings": 2048,
    },
    ("llava", "llama"): _LLAMA,
    ("llava", "mistral"): _MISTRAL,
    ("llava_next", "granite"): _LLAMA,
    ("llava_next", "llama"): _LLAMA,
    ("llava_next", "mistral"): _MISTRAL,
    ("llava_onevision", "qwen2"): _QWEN2,
    ("qwen2_audio", "qwen2"): _QWEN2,
    ("siglip", "siglip_text_model"): {
        "vocab_size": 32_000, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "max_position_embeddings": 64,
    },
    ("smolvlm", "llama"): _LLAMA,
    ("multi_modality", "llama"): _LLAMA,
    ("video_llava", "llama"): _LLAMA,
    ("voxtral_realtime", "voxtral_realtime_text"): {
        "vocab_size": 131_072, "hidden_size": 3072, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": 8192,
    },
    ("voxtral", "llama"): {
        "vocab_size": 131_072, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 30,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5, "rope_theta": 1e8,
    },
}  # fmt: skip
"""(model_type of the whole, of its text part) -> the same for the text part."""
PARTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "qwen2_5_omni_thinker": {"vision_config": {"hidden_size": 3584}},
    "qwen3_asr": {
        "audio_config": {"d_model": 1024, "encoder_layers": 24, "encoder_attention_heads": 16, "encoder_ffn_dim": 4096}
    },
}  # fmt: skip
"""model_type of the whole -> part -> sizes specific to this class's encoders."""
_PARAKEET = {
    "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 8, "num_mel_bins": 80, "intermediate_size": 4096,
}  # fmt: skip
_LASR = {
    "hidden_size": 512, "num_hidden_layers": 17, "num_attention_heads": 8, "num_mel_bins": 128, "intermediate_size": 2048,
}  # fmt: skip
_GRANITE5 = {
    "hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 8, "num_mel_bins": 80, "intermediate_size": 4096,
}  # fmt: skip
ENCODERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "granite_speech5_ctc": ("encoder_config", _GRANITE5),
    "lasr_ctc": ("encoder_config", _LASR),
    **dict.fromkeys(
        ("nemotron3_5_asr", "nemotron_asr_streaming", "parakeet_ctc", "parakeet_rnnt", "parakeet_tdt"),
        ("encoder_config", _PARAKEET),
    ),
}
"""model_type of a model that is an encoder and a head -> (the encoder's part, sizes that it omits). The encoder's sizes are the
model's. Its prompts are one placeholder."""
THINKER = "thinker_config"
"""Key in models with audio output: the part that generates text from text, images and audio."""
TALKER, WHOLE = "TalkerForConditionalGeneration", "ForConditionalGeneration"
"""Ends of the architectures of the part of such a model that speaks, which no file names but `hf_overrides` does, and of the
model."""
THINKER_WORDS, THINKER_WIDTH = "thinker_vocab_size", "thinker_hidden_size"
"""Keys in the configuration of that part: sizes of the part that generates text."""
PAIRS: Mapping[str, str] = {"speech-encoder-decoder": "audio_config", "vision-encoder-decoder": "vision_config"}
"""model_type of any encoder and any decoder -> the part that the encoder becomes."""
MOLMO_2 = "molmo2_text"
"""model_type of a decoder with more tokens in prompts than in its output."""
BLIP_TEXT = "blip_text_model"
"""model_type of a decoder whose texts end with `sep_token_id`, whatever `eos_token_id` is."""
HEAD_ROWS = "head_rows"
"""Key: tokens of the output matrix, where the vocabulary has more."""
RETRIEVER = "vlm_config"
"""Key in late-interaction models: the model that they project the states of."""

TEXT = ("llm_config",)
"""Other names of `text_config`."""
VISION = ("vit_config",)
"""Other names of `vision_config`."""
LANGUAGE = ("deepseek_vl_v2", "multi_modality")
"""model_types with `language_config` in place of `text_config`."""
TIED_INSIDE = ("llava_onevision", "qwen3_asr_thinker")
"""model_types with tie_word_embeddings possibly only in the text part."""


OVIS = "visual_tokenizer_config"
"""Key of Ovis 2: the encoder's configuration is a part of it."""
OVIS_KEYS = ("hidden_stride", "tokenize_function", "vocab_size")
"""Keys beside that part."""
FUYU = "fuyu"
"""`model_type` of a model whose settings of images are those of the whole."""


def canonical_config(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with its text part at the top level, common names for sizes, and the defaults of its class."""
    ends = _inner_ends(config)
    if isinstance(thinker := config.get(THINKER), dict):
        around = {k: v for k, v in config.items() if k != THINKER and v is not None}
        config = {"tie_word_embeddings": False, **thinker, **around, "model_type": thinker.get("model_type"), THINKER: True}
    if isinstance(inner := config.get(RETRIEVER), dict):
        around = {k: v for k, v in config.items() if k not in (RETRIEVER, "model_type") and v is not None}
        config = {**inner, **around}
    if (part := PAIRS.get(str(config.get("model_type")))) is not None:
        names = {"decoder": "text_config", "encoder": part}
        config = {names.get(key, key): value for key, value in config.items()}
        if isinstance(decoder := config.get("text_config"), dict):  # which ties its matrices, or does not
            config["tie_word_embeddings"] = decoder.get("tie_word_embeddings", True)
    for part, sizes in PARTS.get(str(config.get("model_type")), {}).items():
        if isinstance(config.get(part), dict):
            config = {**config, part: {**sizes, **config[part]}}
    for other in TEXT:
        if isinstance(config.get(other), dict) and config.get("text_config") is None:
            config = {"text_config": config[other], **{k: v for k, v in config.items() if k not in (other, "text_config")}}
    for other in VISION:
        if isinstance(config.get(other), dict) and config.get("vision_config") is None:
            config = {"vision_config": config[other], **{k: v for k, v in config.items() if k not in (other, "vision_config")}}
    if config.get("model_type") in LANGUAGE and isinstance(inner := config.get("language_config"), dict):
        config = {"text_config": inner, **{k: v for k, v in config.items() if k != "language_config"}}
    if config.get("model_type") == "canary" and isinstance(config.get("decoder_config"), dict):
        config = {"text_config": config["decoder_config"], **{k: v for k, v in config.items() if k != "decoder_config"}}
    if config.get("model_type") == "encoder-decoder" and isinstance(config.get("decoder"), dict):
        config = {**config, "tie_word_embeddings": config["decoder"].get("tie_word_embeddings", True)}
    if config.get("model_type") in ("t5gemma", "encoder-decoder") and isinstance(config.get("decoder"), dict):
        config = {"text_config": config["decoder"], **{k: v for k, v in config.items() if k != "decoder"}}
    if isinstance(eye := config.get(OVIS), dict) and isinstance(eye.get("backbone_config"), dict):
        config = {"vision_config": {**eye["backbone_config"], **{k: eye[k] for k in OVIS_KEYS if k in eye}}, **config}
    if isinstance(config.get(llava.TOWER), str) and config.get("vision_config") is None:
        config = llava.add_encoder(config)
    if config.get("model_type") == FUYU and config.get("vision_config") is None:
        config = {**config, "vision_config": {key: config[key] for key in ("patch_size", "num_channels") if key in config}}
    text = config.get("text_config")
    if isinstance(text, dict):
        around = {key: value for key, value in config.items() if key != "text_config"}
        inside = INSIDE.get((str(config.get("model_type")), str(text.get("model_type", "llama"))), {})
        if config.get("model_type") in TIED_INSIDE and text.get("tie_word_embeddings"):
            config = {**config, "tie_word_embeddings": True}
        config = {**inside, **text} | {key: config[key] for key in OUTER if config.get(key) is not None} | {BESIDE: around}
    if ends and config.get("eos_token_id") is not None:
        config = {**config, TEXT_ENDS: ends}
    kind = config.get("model_type")
    if not isinstance(kind, str):
        return config
    if kind == BLIP_TEXT:
        config = {**config, "eos_token_id": config.get("sep_token_id", 102)}
    for theirs, common in NAMES.get(kind, {}).items():
        if theirs in config:
            config.setdefault(common, config[theirs])
    config = {**config, **{common: config[theirs] for theirs, common in SHORTER.get(kind, {}).items() if theirs in config}}
    outputs, rows = config.get("output_vocab_size"), config.get("vocab_size")
    if isinstance(outputs, int) and isinstance(rows, int) and 0 < outputs < rows:
        config = {**config, "vocab_size": outputs, ROWS: rows}
    more, rows = config.get("additional_vocab_size"), config.get("vocab_size")
    if kind == MOLMO_2 and isinstance(rows, int) and isinstance(more := 128 if more is None else more, int) and more >= 0:
        config = {**config, "vocab_size": rows + more, HEAD_ROWS: rows}
    if config.get("head_dim") == 0:  # transformers writes the rotated part of latent attention there, and GLM-5 Next has none
        config = {key: value for key, value in config.items() if key != "head_dim"}
    for key in ("layers_block_type", "hybrid_override_pattern"):
        if isinstance(config.get(key), list | str):
            config.setdefault("num_hidden_layers", len(config[key]))
    if kind in ENCODERS:
        config = _encoder_sizes(config, *ENCODERS[kind])
    if isinstance(config.get(LIMITS), list | tuple):
        config[LIMITS] = [None if _endless(value) else value for value in config[LIMITS]]
    return {**ABSENT.get(kind, {}), **config}


def select_talker(config: dict[str, Any]) -> dict[str, Any]:
    """Of a canonical configuration with audio output, that of the part that speaks. CheckpointError."""
    around = config.get(BESIDE)
    talker = around.get("talker_config") if isinstance(around, dict) else None
    inner = talker.get("text_config") if isinstance(talker, dict) else None
    if not isinstance(around, dict) or not isinstance(inner, dict):
        raise CheckpointError("config.json: talker_config: text_config: missing, so there is no part that speaks")
    sizes = {THINKER_WORDS: config.get("vocab_size"), THINKER_WIDTH: config.get("hidden_size")}
    result = canonical_config({**inner, "architectures": config["architectures"], "dtype": config.get("dtype"), **sizes})
    return {**result, BESIDE: around}


def _encoder_sizes(config: dict[str, Any], part: str, sizes: Mapping[str, Any]) -> dict[str, Any]:
    inside = config.get(part)
    if not isinstance(inside, dict):
        return config
    inside = {**sizes, **inside}
    common = {key: inside[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    return {**common, "max_position_embeddings": 1, **config, part: inside}


def _inner_ends(config: Mapping[str, Any]) -> list[Any]:
    """Every `eos_token_id` of the text-generating parts, at any depth, unchecked."""
    found: list[Any] = []
    for key in (THINKER, "text_config", *TEXT):
        part = config.get(key)
        if isinstance(part, dict):
            value = part.get("eos_token_id")
            found += [] if value is None else value if isinstance(value, list) else [value]
            found += _inner_ends(part)
    return found


def _endless(value: Any) -> bool:
    """Is it infinity, as written by Python's JSON or by transformers 5?"""
    return value in (inf, {"__float__": "Infinity"})
