"""Models that see, joined of parts of transformers, which does not have the whole: an encoder before a decoder. For tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as qwen2_5
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2


def with_encoder(decoder: Any, encoder: Callable[[Any], nn.Module]) -> Callable[[Any], Any]:
    """A configuration of images and text -> the decoder, with `encoder(configuration)` as `eye`. It receives what an image
    processor returns, and its vectors replace placeholders. Positions have one axis."""

    class Joined(decoder):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config.text_config)
            self.eye, self.placeholder = encoder(config), config.image_token_id

        def forward(
            self,
            input_ids: Any = None,
            pixel_values: Any = None,
            image_grid_thw: Any = None,
            image_sizes: Any = None,
            **more: Any,
        ) -> Any:
            x, shown = self.model.embed_tokens(input_ids), input_ids == self.placeholder
            own = [each for each in (image_grid_thw, image_sizes) if each is not None]
            if pixel_values is not None and shown.any():
                x = x.masked_scatter(shown.unsqueeze(-1), self.eye(pixel_values, *own))
            return super().forward(inputs_embeds=x, **more)

        def save_pretrained(self, path: Any, **more: Any) -> None:
            """Without the configuration, which is the decoder's."""
            super().save_pretrained(path, **more)
            (Path(path) / "config.json").unlink()

    return lambda config: Joined(eager(config))


def eager(config: Any) -> Any:
    for each in (config, config.text_config, config.vision_config):
        each._attn_implementation = "eager"
    return config


class MergedQwen(nn.Module):
    """Qwen2-VL's encoder, or Qwen2.5-VL's. after: of the merged vectors."""

    def __init__(self, config: Any, after: nn.Module | None = None) -> None:
        super().__init__()
        windowed = hasattr(config.vision_config, "window_size")
        kind = qwen2_5.Qwen2_5_VisionTransformerPretrainedModel if windowed else qwen2.Qwen2VisionTransformerPretrainedModel
        self.visual, self.after = kind(config.vision_config), after or nn.Identity()

    def forward(self, pixels: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.after(self.visual(pixels, grid_thw=grid).pooler_output)
        return made


def normed_qwen(config: Any) -> nn.Module:
    return MergedQwen(config, nn.LayerNorm(config.text_config.hidden_size, 1e-5))
