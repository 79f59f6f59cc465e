"""Image processors of transformers that only torchvision lets one import, on Pillow. Their arithmetic is theirs: what is put in
place are resizing, padding and normalising of tensors. For tests."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers.image_processing_backends import TorchvisionBackend


class Pillow(TorchvisionBackend):
    @property
    def backend(self) -> str:
        return "pil"

    def fetch_images(self, image: Any) -> Any:
        return image

    def process_image(self, image: Any, **more: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).contiguous()

    def resize(self, image: torch.Tensor, size: Any, resample: Any = None, **more: Any) -> torch.Tensor:
        """u8[..., 3, height, width], f32 of whole numbers, or f32[3, height, width] without a filter."""
        if image.is_floating_point() and "antialias" not in more:
            return self.resize(image.to(torch.uint8), size, resample).to(image.dtype)
        if image.is_floating_point():
            assert more["antialias"] is False
            mode = {Image.Resampling.BILINEAR: "bilinear"}.get(resample, "bicubic")
            made = torch.nn.functional.interpolate(image.view(-1, *image.shape[-3:]), (size.height, size.width), mode=mode)
            return made.view(*image.shape[:-2], size.height, size.width)
        flat = image.reshape(-1, *image.shape[-3:]).permute(0, 2, 3, 1).numpy()
        made = [np.array(Image.fromarray(each).resize((size.width, size.height), resample)) for each in flat]
        return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).reshape(*image.shape[:-2], size.height, size.width)

    def pad(self, images: Any, pad_size: Any, **more: Any) -> Any:
        if isinstance(images, list):
            return [self.pad(each, pad_size) for each in images]
        over = pad_size.width - images.shape[-1], pad_size.height - images.shape[-2]
        return torch.nn.functional.pad(images, (0, over[0], 0, over[1]))

    def normalize(self, images: torch.Tensor, mean: Any, std: Any, **more: Any) -> torch.Tensor:
        mean, std = (torch.tensor(v, dtype=images.dtype)[:, None, None] for v in (mean, std))
        return images.sub(mean).div_(std)

    def rescale_and_normalize(
        self, images: torch.Tensor, do_rescale: bool, factor: float, do_normalize: bool, mean: Any, std: Any
    ) -> torch.Tensor:
        assert do_rescale
        assert do_normalize
        mean, std = (torch.tensor(v)[:, None, None] for v in (mean, std))
        return (images.to(torch.float32) * factor - mean) / std


def _pad(images: torch.Tensor, padding: Any, fill: Any) -> torch.Tensor:
    left, top, right, bottom = padding
    assert len(set(fill)) == 1
    return torch.nn.functional.pad(images, (left, right, top, bottom), value=fill[0])


def _resize(image: torch.Tensor, size: Any) -> torch.Tensor:
    """By torchvision's default filter."""
    height, width = size
    return Pillow.resize(Any, image, SimpleNamespace(height=height, width=width), Image.Resampling.BILINEAR)  # type: ignore[arg-type]


functions = SimpleNamespace(pad=_pad, resize=_resize)
"""What these modules take from torchvision."""


@functools.cache
def processor(family: str, name: str) -> Any:
    """The class of that name in the family's module."""
    file = Path(transformers.__file__).parent / "models" / family / f"image_processing_{family}.py"
    unwanted = ("from torchvision", "from ...image_processing_backends")
    lines = [line for line in file.read_text().splitlines() if not line.startswith(unwanted)]
    module: Any = ModuleType(f"transformers.models.{family}.on_pillow")
    module.__dict__.update(
        __package__=f"transformers.models.{family}", __file__=str(file), TorchvisionBackend=Pillow, tvF=functions
    )
    sys.modules[module.__name__] = module  # where its decorators look it up
    exec(compile("\n".join(lines), str(file), "exec"), module.__dict__)
    return module.__dict__[name]
