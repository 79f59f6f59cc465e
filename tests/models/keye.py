"""Keye-VL of parts of transformers, which does not have the model: PaddleOCR-VL with norms of Qwen3's heads. For tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

NORMED = ("q", "k")
OUTSIDE = (
    ("model.language_model.", "model."), ("model.visual.", "visual."), ("model.projector.", "mlp_AR."),
    ("linear_1.0.", "pre_norm."), ("linear_1.1.", "linear_1."),
)  # fmt: skip


class NormedHeads(nn.Module):
    """A projection, and the norm of each head."""

    def __init__(self, proj: nn.Linear, head_dim: int, eps: float) -> None:
        super().__init__()
        self.proj, self.norm = proj, Qwen3RMSNorm(head_dim, eps)
        self.head_dim = head_dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.norm(self.proj(x).unflatten(-1, (-1, self.head_dim))).flatten(-2)
        return made


class Keye(transformers.PaddleOCRVLForConditionalGeneration):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        text = config.text_config
        for layer in self.model.language_model.layers:
            for name in NORMED:
                proj = getattr(layer.self_attn, f"{name}_proj")
                setattr(layer.self_attn, f"{name}_proj", NormedHeads(proj, text.head_dim, text.rms_norm_eps))

    def save_pretrained(self, path: Path, **more: Any) -> None:
        """By the names of the authors."""
        made = {}
        assert self.lm_head.weight is self.model.language_model.embed_tokens.weight
        for key, value in self.state_dict().items():
            for name in NORMED:
                key = key.replace(f"{name}_proj.proj.", f"{name}_proj.").replace(f"{name}_proj.norm.", f"{name}_norm.")
            for theirs, authors in OUTSIDE:
                key = key.replace(theirs, authors)
            if key != "lm_head.weight":
                made[key] = value.contiguous()
        save_file(made, Path(path) / "model.safetensors")


class Keye15(Keye):
    """Merged vectors are normalised."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        merger = self.model.projector
        wide = merger.linear_1.in_features
        merger.pre_norm, merger.linear_1 = nn.Identity(), nn.Sequential(nn.LayerNorm(wide, 1e-5), merger.linear_1)


def spell_config(said: dict[str, Any], name: str) -> dict[str, Any]:
    """config.json as of the authors: keys of the text part are outside."""
    text = {k: v for k, v in said["text_config"].items() if k not in ("model_type", "rope_parameters")}
    rope = said["text_config"]["rope_parameters"]
    return {
        **text, "architectures": [name], "vision_config": said["vision_config"], "image_token_id": said["image_token_id"],
        "tie_word_embeddings": True, "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": "default", "mrope_section": rope["mrope_section"]},
    }  # fmt: skip
