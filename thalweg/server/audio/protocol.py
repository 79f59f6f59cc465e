"""Requests of the audio routes: the fields of a form, typed and bounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from thalweg.server.core.fields import refuse_asked
from thalweg.server.core.schema import Flag, Number, RequestFields, SamplingFields, Whole
from thalweg.server.errors import ApiError
from thalweg.server.http.multipart import MultipartPart

NOT_YET: dict[str, tuple[Any, ...]] = {
    "hotwords": ("",),
    "to_language": ("",),
    "use_beam_search": ("false", "False", "0"),
    "n": ("1",),
    "length_penalty": ("1.0", "1"),
    "include_stop_str_in_output": ("false", "False", "0"),
    "vllm_xargs": ("", "{}"),
    "include[]": ("",),
    "chunking_strategy": ("auto",),
    "known_speaker_names[]": ("",),
    "known_speaker_references[]": ("",),
}
"""Fields that change the answer and are not honoured, each with the values that ask for nothing."""
INSTEAD = {"hotwords": "prompt", "chunking_strategy": "auto"}
WINDOW_FIELDS = (
    "temperature_increment_on_fallback", "compression_ratio_threshold", "logprob_threshold", "no_speech_threshold", "best_of",
    "condition_on_previous_text",
)  # fmt: skip
"""How Whisper's windows are decoded, as OpenAI's `whisper` command names it."""
Form = Literal["json", "text", "srt", "verbose_json", "vtt"]


class AudioRequest(SamplingFields, RequestFields):
    language: Annotated[str, Field(max_length=32)] | None = None
    prompt: Annotated[str, Field(max_length=1 << 16)] = ""
    response_format: Form = "json"
    timestamp_granularities: Annotated[str, Field(max_length=64)] = ""
    """As the form's lists come: joined by commas."""
    stream: Flag | None = False
    stream_include_usage: Flag | None = False
    stream_continuous_usage_stats: Flag | None = False
    temperature_increment_on_fallback: Annotated[Number, Field(ge=0, le=1)] | None = None
    """A window that fails is decoded again at a temperature higher by this. 0: it is not."""
    compression_ratio_threshold: Annotated[Number, Field(gt=0)] | None = None
    logprob_threshold: Number | None = None
    no_speech_threshold: Annotated[Number, Field(ge=0, le=1)] | None = None
    best_of: Annotated[Whole, Field(ge=1, le=20)] | None = None
    condition_on_previous_text: Flag | None = False
    max_completion_tokens: Annotated[Whole, Field(ge=1, lt=2**31)] | None = None
    """Of each window."""

    @classmethod
    def refuse(cls, body: dict[str, Any]) -> None:
        refuse_asked(body, NOT_YET, INSTEAD)

    @property
    def granularities(self) -> frozenset[str]:
        """Of the times in the answer."""
        return frozenset(filter(None, (g.strip() for g in self.timestamp_granularities.split(","))))

    @property
    def has_timestamps(self) -> bool:
        """Does the answer tell times?"""
        return self.response_format in ("verbose_json", "srt", "vtt")

    @property
    def decodes_timestamps(self) -> bool:
        """Does the model write times, in the answer or not?"""
        return self.has_timestamps or bool(self.condition_on_previous_text)


def fields_of(parts: Mapping[str, MultipartPart]) -> tuple[dict[str, Any], bytes]:
    """(the fields of a form, the file). ApiError."""
    file = parts.get("file")
    if file is None or file.filename is None:
        raise ApiError("file: required field is missing: send the audio as a file of the form", "file")
    fields: dict[str, Any] = {}
    for name, part in parts.items():
        if name == "file":
            continue
        if part.filename is not None:
            raise ApiError(f"{name[:80]}: is no file", name[:80])
        try:
            value = part.data.decode()
        except UnicodeDecodeError:
            raise ApiError(f"{name[:80]}: is not UTF-8 text", name[:80]) from None
        known = "timestamp_granularities" if name == "timestamp_granularities[]" else name
        if value or known == "prompt":
            fields[known] = value
    return fields, file.data


def check(request: AudioRequest, timed: bool, heads: int, falls_back: bool) -> None:
    """ApiError for fields that do not go together. timed, heads, falls_back: as `Recognizer` has them."""
    for field in WINDOW_FIELDS:
        if getattr(request, field) not in (None, False) and not (falls_back and not request.stream):
            why = "not in a stream, because a window may be decoded again" if falls_back else "this model does not support it"
            raise ApiError(f"{field}: {why}; omit it", field)
    requested = request.granularities
    name = "timestamp_granularities"
    if odd := sorted(requested - {"word", "segment"}):
        raise ApiError(f"{name}: {odd[0]!r:.40} is neither word nor segment", name)
    if requested and request.response_format != "verbose_json":
        raise ApiError(f"{name}: needs response_format verbose_json", name)
    if "word" in requested and timed and not heads:
        why = "generation_config.json of this model names no alignment_heads, which times of words need"
        raise ApiError(f"{name}: {why}; request segment", name)
    if request.stream and request.has_timestamps:
        raise ApiError(f"stream: {request.response_format} cannot be streamed; ask for json or text", "stream")
