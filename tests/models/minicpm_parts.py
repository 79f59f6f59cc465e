"""MiniCPM-V 2.6 of parts of transformers and torch, as transformers does not have the model: SigLIP's layers, attention with
learned queries, and a decoder. For tests."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.siglip.modeling_siglip import SiglipEncoder

EPS = 1e-6


class Eye(nn.Module):
    def __init__(self, said: dict[str, Any], layers: int) -> None:
        super().__init__()
        config = transformers.SiglipVisionConfig(**{**said, "num_hidden_layers": layers})
        config._attn_implementation = "eager"
        self.side, width = config.image_size // config.patch_size, config.hidden_size
        self.embeddings = nn.ModuleDict({
            "patch_embedding": nn.Conv2d(3, width, config.patch_size, config.patch_size),
            "position_embedding": nn.Embedding(self.side**2, width),
        })  # fmt: skip
        self.encoder, self.post_layernorm = SiglipEncoder(config), nn.LayerNorm(width, EPS)

    def forward(self, patches: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        bounds = torch.arange(1 / self.side, 1.0, 1 / self.side)
        down, across = (torch.bucketize(torch.arange(n) / n, bounds, right=True) for n in (rows, columns))
        place = (down[:, None] * self.side + across).flatten()
        x = self.embeddings["patch_embedding"](patches).flatten(1) + self.embeddings["position_embedding"](place)
        return self.post_layernorm(self.encoder(x[None]).last_hidden_state)


class Queries(nn.Module):
    def __init__(self, count: int, size: int, inputs: int) -> None:
        super().__init__()
        self.query, self.proj = nn.Parameter(torch.zeros(count, size)), nn.Parameter(torch.zeros(size, size))
        self.kv_proj, self.attn = (
            nn.Linear(inputs, size, bias=False),
            nn.MultiheadAttention(size, size // 128, batch_first=True),
        )
        self.ln_q, self.ln_kv, self.ln_post = (nn.LayerNorm(size, EPS) for _ in range(3))

    def forward(self, x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        x = self.ln_kv(self.kv_proj(x))
        quarter = x.shape[-1] // 4
        every = 1e4 ** -(torch.arange(quarter) / quarter)
        down, across = (torch.arange(n)[:, None] * every for n in (rows, columns))
        halves = [torch.cat([each.sin(), each.cos()], 1) for each in (across, down)]
        place = torch.cat([halves[0].repeat(rows, 1), halves[1].repeat_interleave(columns, 0)], 1)
        made, _ = self.attn(self.ln_q(self.query)[None], x + place, x)
        return self.ln_post(made) @ self.proj


class MiniCPMV(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, eye = config, config.vision_config
        self.llm = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        self.vpm = Eye(eye, eye["num_hidden_layers"] - config.drop_vision_last_layer)
        self.resampler = Queries(config.query_num, config.hidden_size, eye["hidden_size"])

    def vectors(self, patches: torch.Tensor, sizes: list[tuple[int, int]]) -> torch.Tensor:
        """patches: [T, 3, patch, patch] of views with these rows and columns."""
        parts = patches.split([rows * columns for rows, columns in sizes])
        return torch.cat([self.resampler(self.vpm(x, *size), *size)[0] for x, size in zip(parts, sizes, strict=True)])

    @torch.no_grad()
    def logits(self, ids: list[int], token: int, vectors: torch.Tensor) -> torch.Tensor:
        x, shown = self.llm.get_input_embeddings()(torch.tensor([ids])), torch.tensor([ids]) == token
        made: torch.Tensor = self.llm(inputs_embeds=x.masked_scatter(shown.unsqueeze(-1), vectors)).logits[0]
        return made
