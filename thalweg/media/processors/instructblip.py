"""InstructBLIP: the image of BLIP-2, whose encoder reads the text of the prompt with a second tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from thalweg.checkpoint.config import BESIDE, Config, integer, section
from thalweg.checkpoint.json_files import read_object
from thalweg.errors import CheckpointError
from thalweg.media.processors.base import Size, outer
from thalweg.media.processors.blip_2 import Blip2, Blip2Source, blip_2

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs
    from thalweg.text.tokenizer import Tokenizer

TOKENIZER, BEGIN = "qformer_tokenizer", "bos_token"
"""Keys of `read_files`."""


class InstructBlip(Blip2, frozen=True, kw_only=True):
    """For decoders."""

    tokenizer: str
    """Directory of the tokenizer of the Q-Former."""
    longest: int
    """Tokens of the longest text that the Q-Former reads."""

    def add_text(self, data: tuple[np.ndarray, ...], text: str) -> tuple[np.ndarray, ...]:
        return (*data, encode(self, text.removeprefix(self.begin)))

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        """views: the image, and the ids of `add_text`."""
        *views, words = views
        result = super().preprocess(views, size)
        result.words = words
        return result


class InstructBlipSource(Blip2Source, frozen=True, kw_only=True):
    """For T5."""

    tokenizer: str
    longest: int

    def add_text(self, data: tuple[np.ndarray, ...], text: str) -> tuple[np.ndarray, ...]:
        """f32[1, 1 + values + 1 + N]: what `source_array` gives, the number of tokens, and their ids."""
        import numpy as np

        (image,), words = data, encode(self, text)
        return (np.concatenate([image[0], [len(words)], words], dtype=np.float32)[None],)


def encode(p: InstructBlip | InstructBlipSource, text: str) -> np.ndarray:
    """i32[N], with the special tokens of the Q-Former. ValueError for a text that is too long."""
    import numpy as np

    ids = _load_tokenizer(p.tokenizer).encode(text)
    if len(ids) > p.longest:
        raise ValueError(f"it has {len(ids)} tokens of the Q-Former, which reads at most {p.longest} with an image: shorten it")
    return np.array(ids, np.int32)


@lru_cache(maxsize=4)
def _load_tokenizer(path: str) -> Tokenizer:
    from thalweg.text.tokenizer import load_tokenizer  # only for prompts with an image

    return load_tokenizer(Path(path))


def read_files(path: Path) -> dict[str, str]:
    """Settings outside config.json, in a model's directory. CheckpointError for a missing file."""
    where = path / TOKENIZER
    if not (where / "tokenizer.json").is_file() and not (where / "vocab.txt").is_file():
        raise CheckpointError(f"{where}: has no tokenizer.json: download the tokenizer of the Q-Former, too")
    found: Any = None
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if found is None and (path / name).is_file():
            found = read_object(path / name).get(BEGIN)
    found = found.get("content") if isinstance(found, dict) else found
    return {TOKENIZER: str(where), **({BEGIN: found} if isinstance(found, str) else {})}


def instructblip(config: Config, options: Config) -> InstructBlip | InstructBlipSource:
    """config: with `read_files` among its outer settings."""
    around, result = outer(config), blip_2(config, options)
    reads = section(around, "qformer_config")
    more = {
        "tokenizer": around[TOKENIZER], "reads_text": True,
        "longest": integer(reads, "max_position_embeddings", high=1 << 16, default=512),
    }  # fmt: skip
    fields = {**msgspec.structs.asdict(result), **more}
    if isinstance(result, Blip2Source):
        return InstructBlipSource(**fields)
    return InstructBlip(**{**fields, "begin": around.get(BEGIN, "<s>"), "separate": True, "single": True})


def instructblip_video(config: Config, options: Config) -> InstructBlip | InstructBlipSource:
    """An image is a video of one frame."""
    around = outer(config)
    return instructblip({**config, BESIDE: {**around, "image_token_index": around.get("video_token_index")}}, options)
