"""Options of images, audio and video."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, ClassVar

from thalweg.media_kinds import MEDIA_KINDS
from thalweg.options.option import Option, Rules
from thalweg.options.requests import RequestOptions

_option = partial(Option, group="MultiModalConfig")


def check_counts(limits: dict[str, Any]) -> Iterator[str]:
    """limit_mm_per_prompt: {"image": 4}, or {"image": {"count": 4}}."""
    for kind, limit in limits.items():
        count = limit.get("count") if isinstance(limit, dict) and set(limit) <= {"count", "width", "height"} else limit
        if kind not in MEDIA_KINDS or isinstance(count, bool) or not isinstance(count, int) or count < 0:
            yield f'{kind!r:.40}: {limit!r:.80} is not like {{"image": 4}}; kinds: {", ".join(MEDIA_KINDS.names())}'


def check_decoding(settings: dict[str, Any]) -> Iterator[str]:
    """The keys of media_io_kwargs."""
    for kind, given in settings.items():
        problems = MEDIA_KINDS.load(kind).check_decoding(given) if kind in MEDIA_KINDS and isinstance(given, dict) else None
        if problems is None:
            yield f'{kind!r:.40}: is not like {{"image": {{"rgba_background_color": [255, 255, 255]}}}}'
        else:
            yield from (f"{kind}: {problem}" for problem in problems)


ALONE = (
    ("tensor_parallel_size", 1), ("pipeline_parallel_size", 1), ("data_parallel_size", 1), ("nnodes", 1),
    ("enable_sleep_mode", False), ("skip_tokenizer_init", False), ("weight_transfer_config", None),
)  # fmt: skip
"""Options that a talker is not implemented with, and their values without effect."""


def check_talker(args: "MediaOptions") -> Iterator[str]:
    for name, plain in ALONE:
        if args.enable_talker and getattr(args, name) != plain:
            yield f"enable_talker: not implemented with {name}; omit one of them"


class MediaOptions(RequestOptions, kw_only=True, frozen=True):
    """Media in prompts and answers."""

    RULES: ClassVar[Rules] = (check_talker,)

    allowed_media_domains: Annotated[list[str] | None, _option(
        "Hosts to fetch media URLs from: HOST means ports 80 and 443, HOST:PORT that port; default: only data: URLs are "
        "read", group="ModelConfig",
    )] = None  # fmt: skip
    allowed_local_media_path: Annotated[
        str | None, _option("Server directory from which file:// media may be read", group="ModelConfig")
    ] = None
    limit_mm_per_prompt: Annotated[dict[str, Any] | None, _option(
        'Maximum items per modality in one prompt: {"image": 4, "audio": 2}; default: 16 each', check=check_counts,
    )] = None  # fmt: skip
    mm_processor_kwargs: Annotated[dict[str, Any] | None, _option(
        'Image and video settings that replace those of the model files: {"max_pixels": 1003520, "fps": 1}; one that nothing '
        'reads is refused',
    )] = None  # fmt: skip
    media_io_kwargs: Annotated[dict[str, Any] | None, _option(
        'Per-modality decoding options: {"image": {"rgba_background_color": [255, 255, 255]}, "video": {"num_frames": 16}}',
        check=check_decoding,
    )] = None  # fmt: skip
    mm_processor_cache_gb: Annotated[float, _option(
        "GiB of preprocessed images kept for the next turn of a conversation, and as much of videos", ge=0, le=1024,
        note="0: none",
    )] = 0.25  # fmt: skip
    mm_processor_cache_type: Annotated[str, _option(
        "How images that were read are kept", choices=("lru",),
        refused={"shm": "one process reads images, so none is shared; leave it at lru"},
    )] = "lru"  # fmt: skip
    disable_chunked_mm_input: Annotated[
        bool, _option("Never split one multimodal item across scheduler steps", group="SchedulerConfig")
    ] = False
    enable_talker: Annotated[bool, _option("Load the part of Qwen3-Omni that speaks its answers, as a second engine")] = False
    language_model_only: Annotated[bool, _option("Do not load encoders of images, video and audio, and refuse such inputs")] = (
        False
    )
