"""Ovis 2.5 of parts of transformers, which does not have the model: Qwen3's decoder, the rotary positions and attention of
Qwen2.5-VL's encoder, and SigLIP's layers. For tests."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as qwen
from transformers.models.siglip.modeling_siglip import SiglipMLP

INDICATORS = 4


class OvisConfig(transformers.Qwen3Config):
    model_type = "ovis2_5"


class SplitAttention(qwen.Qwen2_5_VLVisionAttention):
    """With a matrix each for q, k and v."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        del self.qkv, self.proj
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            self.add_module(name, nn.Linear(self.dim, self.dim))

    @property
    def qkv(self) -> Any:
        return lambda x: torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1)

    @property
    def proj(self) -> Any:
        return self.out_proj


class Block(nn.Module):
    def __init__(self, said: Any, config: Any) -> None:
        super().__init__()
        self.layer_norm1, self.layer_norm2 = (nn.LayerNorm(said.hidden_size, said.layer_norm_eps) for _ in range(2))
        self.self_attn, self.mlp = SplitAttention(config), SiglipMLP(said)

    def forward(self, x: torch.Tensor, **more: Any) -> torch.Tensor:
        x = x + self.self_attn(self.layer_norm1(x), **more)
        return x + self.mlp(self.layer_norm2(x))


class Embeddings(nn.Module):
    """Patches are rows of merged squares."""

    def __init__(self, said: dict[str, Any]) -> None:
        super().__init__()
        hidden, patch, flat = said["hidden_size"], said["patch_size"], said["num_patches"]
        self.merge, self.side = said["hidden_stride"], int(flat**0.5) if flat > 0 else said["image_size"] // patch
        self.patch_embedding = nn.Linear(3 * patch**2, hidden) if flat > 0 else nn.Conv2d(3, hidden, patch, patch)
        self.position_embedding = nn.Embedding(self.side**2, hidden)
        self.grids = torch.zeros(0, 3)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        weight, m = self.patch_embedding.weight.flatten(1), self.merge
        table, places = self.position_embedding.weight.view(self.side, self.side, -1).permute(2, 0, 1)[None], []
        for _, high, wide in self.grids.tolist():
            grid = nn.functional.interpolate(table, (high, wide), mode="bicubic")[0]
            places.append(grid.view(-1, high // m, m, wide // m, m).permute(1, 3, 2, 4, 0).flatten(0, 3))
        return patches @ weight.T + self.patch_embedding.bias + torch.cat(places)


class VisualTokenizer(nn.Module):
    def __init__(self, said: dict[str, Any], rows: int) -> None:
        super().__init__()
        width, depth = said["hidden_size"], said["num_hidden_layers"]
        siglip = transformers.SiglipVisionConfig(**{k: v for k, v in said.items() if k != "model_type"})
        config = transformers.Qwen2_5_VLConfig(
            vision_config={
                "depth": depth, "hidden_size": width, "num_heads": said["num_attention_heads"],
                "patch_size": said["patch_size"], "spatial_merge_size": said["hidden_stride"],
                "fullatt_block_indexes": list(range(depth)), "window_size": 112,
            }
        ).vision_config  # fmt: skip
        config._attn_implementation = "eager"
        reads = qwen.Qwen2_5_VisionTransformerPretrainedModel(config)
        reads.blocks, reads.patch_embed = nn.ModuleList(Block(siglip, config) for _ in range(depth)), Embeddings(said)
        reads.merger = nn.Flatten()
        self.group, self.hidden = said["hidden_stride"] ** 2, width
        encoder = nn.Module()
        encoder.layers = reads.blocks
        parts = {"embeddings": reads.patch_embed, "encoder": encoder, "post_layernorm": nn.LayerNorm(width)}
        self.vit = nn.ModuleDict({"vision_model": nn.ModuleDict(parts)})
        self.head = nn.Sequential(nn.Linear(width * self.group, rows - INDICATORS, bias=False), nn.LayerNorm(rows - INDICATORS))
        reads.merger = _Join(self.group)
        self.__dict__["reads"] = reads  # its modules are saved under the names above

    def forward(self, patches: torch.Tensor, grids: torch.Tensor) -> torch.Tensor:
        self.reads.patch_embed.grids = grids
        shares = self.head(self.reads(patches, grids).pooler_output).softmax(-1)
        return nn.functional.pad(shares, (0, INDICATORS))


class _Join(nn.Module):
    def __init__(self, group: int) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(len(x) // self.group, -1)


class Ovis2_5(transformers.Qwen3ForCausalLM):  # noqa: N801
    config_class = OvisConfig

    def __init__(self, config: OvisConfig) -> None:
        super().__init__(config)
        self.visual_tokenizer = VisualTokenizer(config.vit_config, config.visual_vocab_size)
        self.vte = nn.Embedding(config.visual_vocab_size, config.hidden_size)

    def forward(self, input_ids: Any = None, pixel_values: Any = None, image_grid_thw: Any = None, **more: Any) -> Any:
        x, (pad, begin, end) = self.model.embed_tokens(input_ids), self.config.marks
        if pixel_values is not None and (input_ids == pad).any():
            x = x.masked_scatter(
                (input_ids == pad).unsqueeze(-1), self.visual_tokenizer(pixel_values, image_grid_thw) @ self.vte.weight
            )
            for row, token in enumerate((begin, end)):
                x[input_ids == token] = self.vte.weight[row - INDICATORS]
        return super().forward(inputs_embeds=x, **more)
