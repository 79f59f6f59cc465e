"""The process in which animations are decoded: `python -m thalweg_animation.process`."""

from __future__ import annotations

import sys
from typing import Any

from thalweg.host.jobs import TaskRefusedError, serve
from thalweg.media.decoders.image import WHITE, Views
from thalweg.media.decoders.image_process import load_codecs, make_views, open_image
from thalweg_animation.tasks import AnimationTask, Film


def work(task: AnimationTask) -> Film:
    image = open_image(task.data, task.most_pixels, ("GIF",))
    try:
        count = int(getattr(image, "n_frames", 1))
    except MemoryError:
        raise
    except Exception:
        raise TaskRefusedError("broken") from None
    return Film([_frame(task, image, i) for i in chosen(count, task.frames)])


def chosen(count: int, most: int) -> list[int]:
    """Numbers of at most so many frames, spread evenly over all."""
    if count <= most:
        return list(range(count))
    return [0] if most == 1 else [round(i * (count - 1) / (most - 1)) for i in range(most)]


def _frame(task: AnimationTask, image: Any, number: int) -> Views:
    try:
        image.seek(number)
    except MemoryError:
        raise
    except Exception:
        raise TaskRefusedError("broken") from None
    return make_views(image, task.processor, WHITE)


if __name__ == "__main__":
    load_codecs()
    sys.exit(serve(AnimationTask, work))
