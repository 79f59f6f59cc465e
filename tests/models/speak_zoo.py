"""Tiny random models that speak, made by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from zoo import _copied, spread

VOCAB = {c: i for i, c in enumerate(["k", *" abcdefghijlmnopqrstuvwxyz'-", "<unk>"])}
SMALL: dict[str, Any] = {
    "vocab_size": len(VOCAB), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 24,
    "flow_size": 12, "spectrogram_bins": 9, "upsample_initial_channel": 16, "upsample_rates": [4, 2],
    "upsample_kernel_sizes": [8, 4], "resblock_kernel_sizes": [3, 5], "resblock_dilation_sizes": [[1, 3], [1, 2]],
    "posterior_encoder_num_wavenet_layers": 1, "prior_encoder_num_flows": 2, "prior_encoder_num_wavenet_layers": 2,
    "duration_predictor_num_flows": 3, "depth_separable_num_layers": 2, "wavenet_dilation_rate": 2,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "mms": {},
    "speakers": {"num_speakers": 3, "speaker_embedding_size": 8, "speaking_rate": 0.8},
    "predicted": {
        "use_stochastic_duration_prediction": False, "duration_predictor_filter_channels": 20, "window_size": 2,
        "sampling_rate": 22_050, "hidden_act": "gelu",
    },
    "unconditioned": {"speaker_embedding_size": 8},
}  # fmt: skip


def make_vits(name: str, directory: Path, old: bool = False, tokenizer: dict[str, Any] | None = None, **more: Any) -> Path:
    """old: with the names of weight norms that older versions wrote. tokenizer: other settings of it."""

    def make(path: Path) -> None:
        model = transformers.VitsModel._from_config(transformers.VitsConfig(**{**SMALL, **CASES[name], **more})).eval()
        spread(model, 5)
        g = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for key, p in model.named_parameters():
                if "original0" in key:
                    p.uniform_(0.5, 1.5, generator=g)
                elif "emb_rel" in key or "embed_" in key:
                    p.normal_(0, 1, generator=g)
                elif p.ndim > 2:
                    p.normal_(0, 1.2 / max(1, p[0].numel()) ** 0.5, generator=g)
                elif "log_scale" in key or "translate" in key:
                    p.normal_(0, 0.3, generator=g)
        model.save_pretrained(path)
        (path / "vocab.json").write_text(json.dumps(VOCAB))
        said = {"tokenizer_class": "VitsTokenizer", "phonemize": False, "pad_token": "k", "unk_token": "<unk>"}
        (path / "tokenizer_config.json").write_text(json.dumps({**said, **(tokenizer or {})}))
        if old:
            rename_weight_norms(path / "model.safetensors")

    return _copied((name, old, json.dumps(tokenizer), json.dumps(more)), make, directory / name)


def rename_weight_norms(file: Path) -> None:
    from safetensors.torch import load_file, save_file

    names = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
    tensors = load_file(file)
    for ours, theirs in names.items():
        tensors = {key.replace(ours, theirs): value for key, value in tensors.items()}
    save_file(tensors, file, {"format": "pt"})


def load_vits(path: Path) -> Any:
    return transformers.VitsModel.from_pretrained(path, dtype=torch.float32).eval()


CSM: dict[str, Any] = {
    "num_codebooks": 4, "vocab_size": 19, "text_vocab_size": 40, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "audio_token_id": 38, "audio_eos_token_id": 39, "pad_token_id": 38, "codebook_pad_token_id": 18, "bos_token_id": 1,
}  # fmt: skip
CSM_DEPTH: dict[str, Any] = {
    "num_codebooks": 4, "backbone_hidden_size": 32, "vocab_size": 19, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 5,
}  # fmt: skip
CSM_CODEC: dict[str, Any] = {
    "model_type": "mimi", "hidden_size": 16, "num_filters": 2, "upsampling_ratios": [4, 2], "codebook_size": 32,
    "codebook_dim": 8, "vector_quantization_hidden_dimension": 8, "num_quantizers": 5, "upsample_groups": 16,
    "num_hidden_layers": 2, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 6,
    "sampling_rate": 800, "frame_rate": 50, "num_residual_layers": 2,
}  # fmt: skip
WORDS = ["<s>", "</s>", "<unk>", "[", "]", *"0123456789", *"abcdefghijklmnopqrstuv ", "."]


def make_csm(directory: Path, silent: bool = False, **more: Any) -> Path:
    """silent: frames that end a text's speech are frequent."""

    def make(path: Path) -> None:
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

        config = transformers.CsmConfig(**{**CSM, **more}, depth_decoder_config=CSM_DEPTH, codec_config=CSM_CODEC)
        model = transformers.CsmForConditionalGeneration._from_config(config).eval()
        spread(model, 5)
        g = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for key, p in (*model.named_parameters(), *model.named_buffers()):
                if ("embed" in key and p.ndim == 2) or "codebooks_head" in key or key == "lm_head.weight":
                    p.normal_(0, 1, generator=g)
                elif key.endswith("cluster_usage"):
                    p.uniform_(0.5, 3, generator=g)
                elif key.endswith("scale"):
                    p.uniform_(0.3, 1, generator=g)
                elif p.ndim > 2:
                    p.normal_(0, 1.2 / max(1, p[0].numel()) ** 0.5, generator=g)
            if silent:
                model.depth_decoder.codebooks_head.weight.zero_()
                model.lm_head.weight[0].mul_(3)
        model.save_pretrained(path)
        made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
        made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
        made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
        made.add_special_tokens(["<s>", "</s>", "<unk>"])
        made.save(str(path / "tokenizer.json"))

    return _copied(("csm", silent, json.dumps(more)), make, directory / "csm")


def load_csm(path: Path) -> Any:
    return transformers.CsmForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
