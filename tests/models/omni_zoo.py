"""A small Qwen3-Omni that listens, sees, answers and speaks, saved as its published files are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hearing
import torch
import transformers
from zoo import _copied

NAMES = (*hearing.NAMES, "<tts_pad>", "<tts_bos>", "<tts_eos>", "<system>", "<user>", "<assistant>")
IDS = {name: 256 + i for i, name in enumerate(NAMES)}
BOOKS, CODES, SPECIAL = 4, 64, 1024
TALKER_TEXT: dict[str, Any] = {
    "vocab_size": CODES + SPECIAL, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "shared_expert_intermediate_size": 20, "norm_topk_prob": True,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2], "interleaved": True},
}  # fmt: skip
PREDICTOR: dict[str, Any] = {
    "vocab_size": CODES, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "num_code_groups": BOOKS, "max_position_embeddings": 64,
}  # fmt: skip
CODE2WAV: dict[str, Any] = {
    "codebook_size": CODES, "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 6,
    "intermediate_size": 24, "num_hidden_layers": 2, "num_quantizers": BOOKS, "upsample_rates": [4, 3],
    "upsampling_ratios": [2, 2], "decoder_dim": 16, "max_position_embeddings": 512,
}  # fmt: skip
VOICES = {"ethan": CODES + 600, "chelsie": CODES + 601}
END = CODES + 102


def configuration(**more: Any) -> Any:
    """more: of the talker."""
    thinker = hearing.FAMILIES["qwen3-omni"].config().to_dict()
    thinker["text_config"]["vocab_size"] = len(NAMES) + 256 + 8
    thinker["text_config"] |= {"initializer_range": 0.02, "num_hidden_layers": 4}
    talker = {
        "text_config": TALKER_TEXT, "code_predictor_config": PREDICTOR, "num_code_groups": BOOKS,
        "thinker_hidden_size": thinker["text_config"]["hidden_size"], "codec_eos_token_id": END, "accept_hidden_layer": 3,
        "codec_nothink_id": CODES + 500, "codec_think_bos_id": CODES + 501, "codec_think_eos_id": CODES + 502,
        "codec_pad_id": CODES + 503, "codec_bos_id": CODES + 504, "speaker_id": VOICES, "spatial_merge_size": 2,
        "audio_token_id": IDS["<|AUDIO|>"], "image_token_id": IDS["<|image_pad|>"], "video_token_id": IDS["<|video_pad|>"],
        "vision_start_token_id": IDS["<|vision_start|>"], "audio_start_token_id": IDS["<|audio_bos|>"], **more,
    }  # fmt: skip
    return transformers.Qwen3OmniMoeConfig(
        thinker_config=thinker, talker_config=talker, code2wav_config=CODE2WAV, im_start_token_id=IDS["<|im_start|>"],
        im_end_token_id=IDS["<|im_end|>"], tts_pad_token_id=IDS["<tts_pad>"], tts_bos_token_id=IDS["<tts_bos>"],
        tts_eos_token_id=IDS["<tts_eos>"], system_token_id=IDS["<system>"], user_token_id=IDS["<user>"],
        assistant_token_id=IDS["<assistant>"],
    )  # fmt: skip


def make_omni(directory: Path, ending: float = -0.5, **more: Any) -> Path:
    """ending: relative change of the logit after the last frame, by its row in the output matrix."""

    def make(path: Path) -> None:
        model = transformers.Qwen3OmniMoeForConditionalGeneration._from_config(configuration(**more)).eval()
        hearing.spread_ears(model)
        g = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for key, p in model.named_parameters():
                if not key.startswith(("talker.", "code2wav.")):
                    continue
                if "embedding" in key or "codec_head" in key or "lm_head" in key:
                    p.normal_(0, 1, generator=g)
                elif "layer_scale" in key or key.endswith("gamma"):
                    p.uniform_(0.3, 1, generator=g)
                elif key.endswith((".alpha", ".beta")):
                    p.normal_(0, 0.3, generator=g)
                elif p.ndim > 2 and "experts" not in key:
                    p.normal_(0, 1.0 / max(1, p[0].numel()) ** 0.5, generator=g)
            model.code2wav.decoder[-1].conv.weight *= 0.02
            model.talker.codec_head.weight[END] *= 1 + ending
        model.save_pretrained(path)
        hearing.settings("qwen3-omni", path)
        write_tokenizer(path)

    return _copied(("omni", ending, json.dumps(more)), make, directory / "omni")


def write_tokenizer(path: Path) -> None:
    """Roles are single tokens, as `generate` of transformers looks for them."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in NAMES])
    made.save(str(path / "tokenizer.json"))
    template = hearing.TEMPLATE.replace("{{ m.role }}", "<{{ m.role }}>").replace("assistant\n", "<assistant>\n")
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, "eos_token": "<|im_end|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(said))


def load_omni(path: Path) -> Any:
    return transformers.Qwen3OmniMoeForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
