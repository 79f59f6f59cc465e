"""Models that only transcribe: an audio encoder whose result is a transcript. Their prompts are placeholders of clips."""

from __future__ import annotations

from thalweg.models.spec import BlockTranscriberSpec, ConformerTranscriberSpec, FastConformerSpec, ModelSpec, Names, Wav2VecSpec
from thalweg.models.spec.transcript import transcript_width
from thalweg.models.tail import Pooling


def transcriber(
    encoder: BlockTranscriberSpec | ConformerTranscriberSpec | FastConformerSpec | Wav2VecSpec, tokens: int, names: Names
) -> ModelSpec:
    """tokens: of the longest transcript."""
    return ModelSpec(
        vocab=1, hidden=transcript_width(tokens), layers=(), norm=None, root="", embed="",
        names=names, audio=encoder, pooling=Pooling("last", activate=False, encoded=True, transcribes=True),
    )  # fmt: skip
