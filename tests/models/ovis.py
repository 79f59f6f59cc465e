"""Ovis 2 of parts of transformers, by the names and with the parts of images of its authors. For tests."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from joined_parts import with_encoder
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from transformers.models.ovis2.modeling_ovis2 import Ovis2VisionModel, Ovis2VisualEmbeddingTable

MOST = 4
START, PREFIX, COLUMN, ROW, END = range(5)
NAMES = (
    ("eye.tower.head_linear.", "visual_tokenizer.head.0."), ("eye.tower.head_norm.", "visual_tokenizer.head.1."),
    ("eye.tower.transformer.embeddings.patch_embedding.", "visual_tokenizer.backbone.preprocessor.patchifier.proj."),
    ("eye.tower.transformer.embeddings.rms_norm.", "visual_tokenizer.backbone.preprocessor.patchifier.norm."),
    ("eye.tower.transformer.encoder.layers.", "visual_tokenizer.backbone.trunk.blocks."), ("eye.norm.",
    "visual_tokenizer.backbone.trunk.post_trunk_norm."), ("eye.vte.", "vte."), ("model.", "llm.model."),
    ("lm_head.", "llm.lm_head."), (".attention.out_proj.", ".attn.proj."), (".rms_norm1.", ".norm_1."),
    (".rms_norm2.", ".norm_2."), (".ffn.gate_proj.", ".mlp.fc1."), (".ffn.up_proj.", ".mlp.fc3."),
    (".ffn.down_proj.", ".mlp.fc2."),
)  # fmt: skip
PLACES = "eye.tower.transformer.embeddings.position_embedding.weight"


def indicators(rows: int, columns: int) -> list[int]:
    """After each view, and before the first: numbers of learned vectors."""
    if rows * columns == 1:
        return [START, PREFIX, END]
    line = [COLUMN] * (columns - 1)
    return [START, PREFIX, *(sign for row in range(rows) for sign in (*line, ROW if row < rows - 1 else END))]


class Eye(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.tower = Ovis2VisionModel(config.vision_config)
        self.norm, self.tower.transformer.rms_norm = self.tower.transformer.rms_norm, nn.Identity()
        self.vte = Ovis2VisualEmbeddingTable(config.vision_config.vocab_size, config.text_config.hidden_size)

    def forward(self, pixels: torch.Tensor, grids: torch.Tensor) -> torch.Tensor:
        shares = self.tower(pixels).pooler_output
        views = iter(self.vte(nn.functional.pad(shares, (0, 5))))
        made = []
        for rows, columns in grids.tolist():
            first, *signs = self.vte(torch.tensor(indicators(rows, columns)) + self.vte.num_embeddings - 5)
            made.append(first[None])
            count = rows * columns + (rows * columns > 1)
            for i, sign in enumerate(signs):
                made += [*([next(views)] if i < count else []), sign[None]]
        return torch.cat(made)


def build(config: Any) -> Any:
    model = with_encoder(transformers.Qwen2ForCausalLM, Eye)(config)
    model.save_pretrained = lambda path: save_file(authors_names(model.state_dict()), Path(path) / "model.safetensors")
    return model


def authors_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    made = {"visual_tokenizer.backbone.preprocessor.pos_embed": state[PLACES][None].clone()}
    for key, value in state.items():
        if ".attention.q_proj." in key:
            parts = [state[key.replace(".q_proj.", f".{p}_proj.")] for p in "qkv"]
            key, value = key.replace(".attention.q_proj.", ".attn.qkv."), torch.cat(parts)
        if key == PLACES or ".attention.k_proj." in key or ".attention.v_proj." in key or "position_ids" in key:
            continue
        for old, new in NAMES:
            key = new + key.removeprefix(old) if key.startswith(old) else key.replace(old, new) if old[0] == "." else key
        made[key] = value.contiguous().clone()
    return made


class OvisParts(transformers.CLIPImageProcessorPil):
    """The authors' choice of parts, each fitted to a square, with zeros around its normalised pixels."""

    def preprocess(self, images: Any, **more: Any) -> Any:
        squares, grids = [], []
        for image in images:
            rows, columns = grid = choose(image, self.size["shortest_edge"])
            grids.append(grid)
            boxes = parts(image, rows, columns)
            views = [image.crop(box) for box in boxes]
            squares += [self.square(view) for view in ([image, *views] if len(views) > 1 else views)]
        return {"pixel_values": np.stack(squares), "image_sizes": np.array(grids)}

    def square(self, view: Any) -> np.ndarray:
        side, (wide, high) = self.size["shortest_edge"], view.size
        size = (side, int(high / wide * side)) if wide > high else (int(wide / high * side), side)
        size = (max(size[0], 1), max(size[1], 1))
        shades = np.asarray(view.resize(size, Image.Resampling.BICUBIC), np.float32).transpose(2, 0, 1) / 255
        mean, std = (np.array(v, np.float32)[:, None, None] for v in (self.image_mean, self.image_std))
        made = np.zeros((3, side, side), np.float32)
        top, left = (side - size[1]) // 2, (side - size[0]) // 2
        made[:, top : top + size[1], left : left + size[0]] = (shades - mean) / std
        return made


def parts(image: Any, rows: int, columns: int) -> list[tuple[int, int, int, int]]:
    wide, high = image.width // columns, image.height // rows
    across = [(i * wide, image.width if i == columns - 1 else (i + 1) * wide) for i in range(columns)]
    down = [(i * high, image.height if i == rows - 1 else (i + 1) * high) for i in range(rows)]
    return [(left, top, right, bottom) for top, bottom in down for left, right in across]


def choose(image: Any, side: int) -> tuple[int, int]:
    """Rows and columns: of those that show more than 0.9 of the area the fewest parts, else those that show most."""
    shown = {}
    for rows, columns in ((a, b) for a in range(1, MOST + 1) for b in range(1, MOST + 1) if a * b <= MOST):
        area = 0.0
        for left, top, right, bottom in parts(image, rows, columns):
            long, short = sorted((right - left, bottom - top), reverse=True)
            area += side * (short / long * side) if long > side else long * short
        shown[rows, columns] = area / (image.width * image.height)
    good = {grid: share for grid, share in shown.items() if share > 0.9}
    if good:
        return min(good, key=lambda grid: (math.prod(grid), -good[grid]))
    return min(shown, key=lambda grid: (-shown[grid], math.prod(grid)))


def spell_config(said: dict[str, Any]) -> dict[str, Any]:
    eye = said["vision_config"]
    sizes = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "image_size", "patch_size", "qkv_bias",
        "rms_norm_eps",
    )  # fmt: skip
    return {
        "architectures": ["Ovis"], "model_type": "ovis", "llm_config": said["text_config"], "hidden_size": 48,
        "visual_tokenizer_config": {
            "model_type": "aimv2_visual_tokenizer", "hidden_stride": eye["hidden_stride"], "tokenize_function": "softmax",
            "vocab_size": eye["vocab_size"], "drop_cls_token": False,
            "backbone_config": {**{key: eye[key] for key in sizes}, "model_type": "aimv2", "use_bias": eye["qkv_bias"]},
        },
    }  # fmt: skip
