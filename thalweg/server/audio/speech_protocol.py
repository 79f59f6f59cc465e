"""Requests of /v1/audio/speech."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from thalweg.server.core.fields import refuse_asked
from thalweg.server.core.schema import Label, Number, RequestFields, Whole, WireModel
from thalweg.server.errors import ApiError

NOT_YET: dict[str, tuple[Any, ...]] = {
    "instructions": ("",),
    "stream": (False,),
    "task_type": (),
    "language": ("", "Auto", "auto"),
    "ref_audio": ("",),
    "ref_text": ("",),
    "max_new_tokens": (),
    "x_vector_only_mode": (False,),
}
"""Fields that change the answer and are not honoured, each with the values that ask for nothing."""
INSTEAD = {"stream": "stream_format", "ref_audio": "voice"}
MOST_CHARACTERS = 4096


class VoiceName(WireModel):
    id: Label


class SpeechRequest(RequestFields):
    input: Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS)]
    voice: Label | VoiceName | None = None
    """None: the model's first."""
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "mp3"
    speed: Number = 1.0
    stream_format: Literal["audio", "sse"] = "audio"
    seed: Annotated[Whole, Field(ge=-(2**63), lt=2**63)] | None = None
    """None: drawn."""
    temperature: Number | None = None
    """Of models that generate frames. None: the model's default."""
    user: Label | None = None

    @classmethod
    def refuse(cls, body: dict[str, Any]) -> None:
        refuse_asked(body, NOT_YET, INSTEAD)

    @property
    def voice_name(self) -> str:
        """ "": the model's first."""
        return self.voice.id if isinstance(self.voice, VoiceName) else self.voice or ""

    def check(self) -> None:
        """ApiError for fields of other routes."""
        if self.truncate_prompt_tokens is not None:
            raise ApiError("truncate_prompt_tokens: texts to be spoken are not cut; omit it", "truncate_prompt_tokens")
