"""DeepSeek-VL2 of parts of transformers, which does not have the model: SigLIP's encoder and DeepSeek-V2. Images are fitted by
Pillow, as of the authors. For tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import ImageOps
from safetensors.torch import save_file
from torch import nn

SIDE, PATCH, EDGE = 28, 4, 4
"""Pixels of a square and of a patch, and vectors along the edge of a square: 7 patches, and one of zeros."""
RECTANGLES = [[28, 28], [56, 28], [28, 56], [56, 56], [84, 28], [28, 84]]
LAYER = (("layer_norm1.", "norm1."), ("layer_norm2.", "norm2."), ("self_attn.out_proj.", "attn.proj."))


class Vl2Config(transformers.DeepseekV2Config):
    model_type = "deepseek_vl_v2"


class DeepseekVL2(transformers.DeepseekV2ForCausalLM):
    config_class = Vl2Config

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        eye = transformers.SiglipVisionConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE, patch_size=PATCH,
            hidden_act="gelu", vision_use_head=False,
        )  # fmt: skip
        eye._attn_implementation = "eager"
        self.eye, width = transformers.SiglipVisionModel(eye), config.hidden_size
        self.joins = nn.Sequential(nn.Linear(4 * 32, width), nn.GELU(), nn.Linear(width, width))
        self.newline, self.separator = (nn.Parameter(torch.randn(width)) for _ in range(2))

    def vectors(self, tiles: torch.Tensor, columns: int, rows: int) -> torch.Tensor:
        x = self.eye(pixel_values=tiles).last_hidden_state.transpose(1, 2).unflatten(2, (7, 7))
        x = nn.functional.unfold(nn.functional.pad(x, (0, 1, 0, 1)), 2, stride=2).transpose(1, 2)
        x = self.joins(x).unflatten(1, (EDGE, EDGE))
        whole, tiled = x[0], x[1:].unflatten(0, (rows, columns)).transpose(1, 2).flatten(2, 3).flatten(0, 1)
        lines = [torch.cat([part, self.newline.expand(len(part), 1, -1)], 1).flatten(0, 1) for part in (whole, tiled)]
        return torch.cat([lines[0], self.separator[None], lines[1]])

    def forward(self, input_ids: Any = None, pixel_values: Any = None, tilings: Any = None, **more: Any) -> Any:
        x, shown = self.model.embed_tokens(input_ids), input_ids == self.config.image_token_id
        if pixel_values is not None and input_ids.shape[1] > 1:
            tiles = pixel_values.split([1 + int(c) * int(r) for c, r in tilings])
            made = [self.vectors(each, int(c), int(r)) for each, (c, r) in zip(tiles, tilings, strict=True)]
            x = x.masked_scatter(shown.unsqueeze(-1), torch.cat(made))
        return super().forward(inputs_embeds=x, **more)

    def save_pretrained(self, path: Any, **more: Any) -> None:
        """By the names of the authors."""
        made: dict[str, torch.Tensor] = {}
        for key, value in self.state_dict().items():
            for i in range(2):
                key = key.replace(f"eye.encoder.layers.{i}.", f"vision.blocks.{i}.")
            key = key.replace("eye.vision_model.", "eye.").replace("eye.encoder.layers.", "vision.blocks.")
            for old, new in LAYER:
                key = key.replace(old, new)
            key = key.replace("eye.embeddings.patch_embedding.", "vision.patch_embed.proj.")
            key = key.replace("eye.post_layernorm.", "vision.norm.").replace("joins.", "projector.layers.")
            key = {"newline": "image_newline", "separator": "view_seperator"}.get(key, key)
            if key == "eye.embeddings.position_embedding.weight":
                key, value = "vision.pos_embed", value[None]
            if key.startswith(("model.", "lm_head.")):
                key = f"language.{key}"
            made[key] = value.contiguous()
        for i in range(2):
            for kind in ("weight", "bias"):
                parts = [made.pop(f"vision.blocks.{i}.self_attn.{p}_proj.{kind}") for p in "qkv"]
                made[f"vision.blocks.{i}.attn.qkv.{kind}"] = torch.cat(parts)
        save_file(made, Path(path) / "model.safetensors")


def choose(width: int, height: int) -> tuple[int, int]:
    def rank(frame: list[int]) -> tuple[int, int]:
        scale = min(frame[0] / width, frame[1] / height)
        shown = min(int(width * scale) * int(height * scale), width * height)
        return shown, shown - frame[0] * frame[1]

    return tuple(max(RECTANGLES, key=rank))  # type: ignore[return-value]


class FittedTiles:
    """The processor of the authors, of Pillow's fitting."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def save_pretrained(self, path: Path) -> None:
        (Path(path) / "preprocessor_config.json").write_text(json.dumps(self.settings))

    def __call__(self, images: list[Any], **more: Any) -> dict[str, np.ndarray]:
        tiles, tilings = [], []
        for image in images:
            best = choose(*image.size)
            whole, cut = (ImageOps.pad(image.convert("RGB"), frame, color=(127,) * 3) for frame in ((SIDE, SIDE), best))
            boxes = [(x, y, x + SIDE, y + SIDE) for y in range(0, best[1], SIDE) for x in range(0, best[0], SIDE)]
            tiles += [whole, *(cut.crop(box) for box in boxes)]
            tilings.append([best[0] // SIDE, best[1] // SIDE])
        values = np.stack([np.asarray(each, np.float32).transpose(2, 0, 1) / 255 for each in tiles])
        return {"pixel_values": (values - 0.5) / 0.5, "tilings": np.array(tilings)}


def spell_config(said: dict[str, Any]) -> dict[str, Any]:
    """config.json as of the authors."""
    kept = {k: v for k, v in said.items() if k not in ("architectures", "vision_config", "image_token_id", "model_type")}
    return {
        "architectures": ["DeepseekVLV2ForCausalLM"], "model_type": "deepseek_vl_v2", "tile_tag": "2D",
        "global_view_pos": "head", "candidate_resolutions": RECTANGLES,
        "language_config": {**kept, "model_type": "deepseek_v2"},
        "vision_config": {
            "model_name": "siglip_so400m_patch14_384", "width": 32, "layers": 2, "heads": 2, "mlp_ratio": 1.5,
            "patch_size": PATCH, "image_size": SIDE, "model_type": "vision",
        },
        "projector_config": {
            "projector_type": "downsample_mlp_gelu", "depth": 2, "downsample_ratio": 2, "input_dim": 32, "mlp_ratio": 1,
            "n_embed": kept["hidden_size"],
        },
    }  # fmt: skip
