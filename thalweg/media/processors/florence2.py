"""Florence-2: one square. Its vectors stand before the text that the encoder reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from thalweg.checkpoint.config import Config, flag
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.processors.base import (
    FILE,
    ImageProcessor,
    Size,
    View,
    check_shape,
    read_size,
    settings,
    token,
    vision,
)

if TYPE_CHECKING:
    import numpy as np

STAGES: Mapping[str, list[Any]] = {
    "embed_dim": [128, 256, 512, 1024], "depths": [1, 1, 9, 1], "patch_size": [7, 3, 3, 3], "patch_stride": [4, 2, 2, 2],
    "patch_padding": [3, 1, 1, 1], "patch_prenorm": [False, True, True, True], "num_heads": [4, 8, 16, 32],
    "num_groups": [4, 8, 16, 32],
}  # fmt: skip
"""Lists of `vision_config` with a value per stage of the encoder, and their defaults."""
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


TASKS: Mapping[str, str] = {
    "<OCR>": "What is the text in the image?",
    "<OCR_WITH_REGION>": "What is the text in the image, with regions?",
    "<CAPTION>": "What does the image describe?",
    "<DETAILED_CAPTION>": "Describe in detail what is shown in the image.",
    "<MORE_DETAILED_CAPTION>": "Describe with a paragraph what is shown in the image.",
    "<OD>": "Locate the objects with category name in the image.",
    "<DENSE_REGION_CAPTION>": "Locate the objects in the image, with their descriptions.",
    "<REGION_PROPOSAL>": "Locate the region proposals in the image.",
}
"""Names of tasks, which are whole prompts, and the sentences that the model was trained with."""
TASKS_WITH_TEXT: Mapping[str, str] = {
    "<CAPTION_TO_PHRASE_GROUNDING>": "Locate the phrases in the caption: {input}",
    "<REFERRING_EXPRESSION_SEGMENTATION>": "Locate {input} in the image with mask",
    "<REGION_TO_SEGMENTATION>": "What is the polygon mask of region {input}",
    "<OPEN_VOCABULARY_DETECTION>": "Locate {input} in the image.",
    "<REGION_TO_CATEGORY>": "What is the region {input}?",
    "<REGION_TO_DESCRIPTION>": "What does the region {input} describe?",
    "<REGION_TO_OCR>": "What text is in the region {input}?",
}
"""The same of tasks that further text belongs to."""


class Florence2(ImageProcessor, frozen=True, kw_only=True):
    side: int
    vectors: int

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        return (View(((self.side, self.side),)),)

    def complete(self, prompt: str) -> str:
        """With a task's sentence in place of its name. A missing placeholder is added, as it stands before the text anyway."""
        before, marker, behind = prompt.partition(self.marker)
        text = before + behind
        for name, sentence in TASKS.items():
            if name in text:
                if text != name:
                    raise ValueError(f"{name} is a whole prompt: send nothing else with it")
                return self.marker + sentence
        for name, sentence in TASKS_WITH_TEXT.items():
            if name in text:
                return self.marker + sentence.format(input=text.replace(name, "").strip())
        return prompt if marker else self.marker + prompt

    def count(self, size: Size) -> int:
        return self.vectors

    def source_array(self, views: Sequence[np.ndarray], size: Size, position: int) -> np.ndarray:
        """f32[1, 1 + values]: the pixels along an edge, then the values of all pixels by channels."""
        import numpy as np

        from thalweg.media import patches

        pixels = patches.normalize(views[0], self).transpose(2, 0, 1).reshape(1, -1)
        return np.concatenate([np.full((1, 1), self.side, np.float32), pixels], 1)


def florence2(config: Config, options: Config) -> Florence2:
    size = read_size(options, "size", ("height", "width"), {"height": 224, "width": 224})
    if flag(options, "do_center_crop", True) or set(size) != {"height", "width"} or len(set(size.values())) > 1:
        raise UnsupportedModelError(f"{FILE}: do_center_crop: must be false, and size a height and an equal width")
    side = size["height"]
    return Florence2(
        token=token(config, 51_289), marker="<image>", patch=1, side=side, vectors=1 + count_positions(config, side) ** 2,
        source=True, **settings(options, mean=MEAN, std=STD),
    )  # fmt: skip


def count_positions(config: Config, side: int) -> int:
    """Positions along an edge behind the last stage."""
    seen = vision(config)
    kernels, strides, paddings = (seen.get(key) or STAGES[key] for key in ("patch_size", "patch_stride", "patch_padding"))
    for kernel, stride, padding in zip(kernels, strides, paddings, strict=True):
        side = (side + 2 * padding - kernel) // stride + 1
    if side < 1:
        raise CheckpointError(f"{FILE}: size: too small for this encoder")
    return side
