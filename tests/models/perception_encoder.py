"""PerceptionLM of transformers with an encoder of parts of torch, in place of that of a library that is not installed here. For
tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import transformers
from torch import nn


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = (_turn(each, angles) for each in (q, k))
        return self.proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def _turn(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Pairs of neighbours of x [..., T, n], of the tokens that have angles [A, n / 2]: the last ones."""
    skip = x.shape[-2] - len(angles)
    pairs = torch.view_as_complex(x[..., skip:, :].unflatten(-1, (-1, 2)).contiguous())
    turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)
    return torch.cat([x[..., :skip, :], turned], -2)


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(hidden, 1e-5), nn.LayerNorm(hidden, 1e-5)
        self.attn, self.mlp = (
            Attention(hidden, heads),
            nn.ModuleDict({"fc1": nn.Linear(hidden, inner), "fc2": nn.Linear(inner, hidden)}),
        )
        self.gamma_1, self.gamma_2 = (nn.Parameter(torch.full((hidden,), 0.1)) for _ in range(2))

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        x = x + self.gamma_1 * self.attn(self.norm1(x), angles)
        return x + self.gamma_2 * self.mlp["fc2"](nn.functional.gelu(self.mlp["fc1"](self.norm2(x))))


class Encoder(nn.Module):
    def __init__(self, a: dict[str, Any]) -> None:
        super().__init__()
        hidden, heads, patch, self.side = a["embed_dim"], a["num_heads"], a["patch_size"], a["img_size"][0] // a["patch_size"]
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, hidden, patch, patch, bias=False)})
        self.cls_token = nn.Parameter(torch.zeros(1, 1, hidden)) if a["class_token"] else None
        self.pos_embed = nn.Parameter(torch.zeros(1, self.side**2 + a["class_token"], hidden))
        self.norm_pre = nn.LayerNorm(hidden, 1e-5)
        self.blocks = nn.ModuleList(Block(hidden, heads, int(hidden * a["mlp_ratio"])) for _ in range(a["depth"]))
        bands = 1e4 ** -(torch.arange(hidden // heads // 4) / (hidden // heads // 4))
        at = (torch.arange(self.side) + a["rope_grid_offset"]) / self.side * a["ref_feat_shape"][0]
        down, across = (each.flatten()[:, None] * bands for each in torch.meshgrid(at, at, indexing="ij"))
        self.angles = torch.cat([across, down], 1)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        x = self.patch_embed["proj"](pixels).flatten(2).transpose(1, 2)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
        x = self.norm_pre(x + self.pos_embed)
        for block in self.blocks:
            x = block(x, self.angles)
        return x


class Wrapper(nn.Module):
    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__()
        self.timm_model = Encoder(args)

    def forward(self, pixels: torch.Tensor, **more: Any) -> Any:
        return SimpleNamespace(last_hidden_state=self.timm_model(pixels))


def build(config: Any) -> Any:
    make = transformers.AutoModel.from_config

    def from_config(said: Any, **more: Any) -> Any:
        return Wrapper(said.model_args) if said.model_type == "timm_wrapper" else make(said, **more)

    with mock.patch.object(transformers.AutoModel, "from_config", from_config):
        return transformers.PerceptionLMForConditionalGeneration._from_config(config, attn_implementation="eager")
