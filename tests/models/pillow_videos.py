"""Video processors of transformers, which only torchvision lets one import, on Pillow. Their choice of frames, their sizes and
their patches are theirs: what is put in place are resizing and normalising of tensors. For tests."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from PIL import Image
from transformers.image_utils import SizeDict
from transformers.video_utils import VideoMetadata, default_sample_indices_fn


def resize(video: torch.Tensor, size: list[int], interpolation: int, antialias: bool) -> torch.Tensor:
    """u8[..., 3, height, width]. size: height, width."""
    flat = video.reshape(-1, *video.shape[-3:]).permute(0, 2, 3, 1).numpy()
    made = [np.array(Image.fromarray(each).resize((size[1], size[0]), interpolation)) for each in flat]
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).reshape(*video.shape[:-2], *size)


def resize_floats(frames: torch.Tensor, size: tuple[int, int], mode: str, **more: Any) -> torch.Tensor:
    """In the place of torch's function: of 8-bit pixels, as images are resized."""
    assert mode == "bicubic"
    assert more["antialias"]
    return resize(frames.to(torch.uint8), list(size), Image.Resampling.BICUBIC, True).float()


class PillowVideo:
    """In the place of BaseVideoProcessor."""

    num_frames = fps = rescale_factor = crop_size = do_center_crop = None
    default_to_square = True

    def __init__(self, **settings: Any) -> None:
        for key, value in settings.items():
            setattr(self, key, value)

    def sample_frames(self, metadata: Any, num_frames: int | None = None, fps: float | None = None, **more: Any) -> Any:
        return default_sample_indices_fn(metadata, num_frames or self.num_frames, fps or self.fps)

    def resize(self, image: Any, size: Any, resample: Any = None, **more: Any) -> torch.Tensor:
        return resize(image, [size.height, size.width], resample, True)

    def rescale_and_normalize(
        self, videos: Any, do_rescale: bool, factor: float, do_normalize: bool, mean: Any, std: Any
    ) -> Any:
        assert do_rescale
        assert do_normalize
        mean, std = (torch.tensor(v)[:, None, None] for v in (mean, std))
        made: torch.Tensor = (videos.float() * factor - mean) / std
        return made

    def _preprocess(
        self, videos: Any, size: Any, resample: Any, rescale_factor: float, image_mean: Any, image_std: Any, **more: Any
    ) -> dict[str, Any]:
        """As the base class's, of classes that have none."""
        made = self.resize(videos[0][None], size, resample)
        return {"pixel_values_videos": self.rescale_and_normalize(made, True, rescale_factor, True, image_mean, image_std)}

    def read(self, film: np.ndarray, rate: float, **asked: Any) -> tuple[Any, dict[str, Any]]:
        """(metadata with the chosen frames, arguments of the model). film: u8[frames, height, width, 3]. rate: its frames of a
        second."""
        metadata = VideoMetadata(total_num_frames=len(film), fps=rate, duration=len(film) / rate)
        chosen = np.asarray(self.sample_frames(metadata=metadata, **asked))
        metadata.frames_indices = chosen
        keys = ("resample", "do_resize", "do_rescale", "do_normalize", "do_pad", "image_mean", "image_std", "patch_size")
        keys += ("temporal_patch_size", "merge_size", "max_soft_tokens", "pooling_kernel_size", "do_center_crop", "crop_size")
        size = getattr(self, "size", None)
        with mock.patch.object(torch.nn.functional, "interpolate", resize_floats):
            return metadata, dict(self.process(film, chosen, size, keys))

    def process(self, film: np.ndarray, chosen: np.ndarray, size: Any, keys: tuple[str, ...]) -> Any:
        return self._preprocess(
            videos=[torch.from_numpy(film[chosen]).permute(0, 3, 1, 2)],
            size=size if size is None or isinstance(size, SizeDict) else SizeDict(**size),
            rescale_factor=self.rescale_factor or 1 / 255, return_tensors="pt",
            **{key: getattr(self, key) for key in keys if hasattr(self, key)},
        )  # fmt: skip


@functools.cache
def load(family: str, name: str) -> Any:
    """The class of that name in the family's module."""
    file = Path(transformers.__file__).parent / "models" / family / f"video_processing_{family}.py"
    unwanted = ("import torchvision", "from torchvision", "from ...video_processing_utils", "@auto_docstring")
    lines = [line for line in file.read_text().splitlines() if not line.strip().startswith(unwanted)]
    lines = [line + " pass" if line.startswith(("if is_torchvision", "elif is_torchvision")) else line for line in lines]
    module: Any = ModuleType(f"transformers.models.{family}.videos_on_pillow")
    functions = SimpleNamespace(InterpolationMode=int, resize=resize)
    module.__dict__.update(
        __package__=f"transformers.models.{family}", __file__=str(file), BaseVideoProcessor=PillowVideo, tvF=functions
    )
    sys.modules[module.__name__] = module  # where its decorators look it up
    exec(compile("\n".join(lines), str(file), "exec"), module.__dict__)
    return module.__dict__[name]
