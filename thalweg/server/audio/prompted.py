"""Transcripts of models whose prompt names languages: Canary, Cohere Transcribe and SeamlessM4T."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from thalweg.media.audio_windows import windows
from thalweg.media.mel import HOP, RATE
from thalweg.server.audio.protocol import AudioRequest
from thalweg.server.audio.recognizer import Recognizer, WindowedAudio, join_words
from thalweg.server.audio.tokens import read_language
from thalweg.server.errors import ApiError

if TYPE_CHECKING:
    from thalweg.server.core.admission import Ticket
    from thalweg.server.core.serving import Serving

TOKENS = ("<|startofcontext|>", "<|startoftranscript|>", "<|emo:undefined|>", "<|{source}|>", "<|{target}|>", "<|pnc|>",
          "<|noitn|>", "<|notimestamp|>", "<|nodiarize|>")  # fmt: skip
"""NeMo's prompt for text with punctuation, without times."""
DEFAULT = "en"
"""The language, where a request names none: these models detect none."""

CANARY_LANGUAGES = ("bg", "cs", "da", "de", "el", "en", "es", "et", "fi", "fr", "hr", "hu", "it", "lt", "lv", "mt", "nl", "pl",
                    "pt", "ro", "ru", "sk", "sl", "sv", "uk")  # fmt: skip
COHERE_LANGUAGES = ("ar", "de", "el", "en", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "vi", "zh")


SEAMLESS_LANGUAGES = {
    "af": "afr", "am": "amh", "ar": "arb", "as": "asm", "az": "azj", "be": "bel", "bg": "bul", "bn": "ben", "bs": "bos",
    "ca": "cat", "cs": "ces", "cy": "cym", "da": "dan", "de": "deu", "el": "ell", "en": "eng", "es": "spa", "et": "est",
    "eu": "eus", "fa": "pes", "fi": "fin", "fr": "fra", "ga": "gle", "gl": "glg", "gu": "guj", "he": "heb", "hi": "hin",
    "hr": "hrv", "hu": "hun", "hy": "hye", "id": "ind", "ig": "ibo", "is": "isl", "it": "ita", "ja": "jpn", "jv": "jav",
    "ka": "kat", "kk": "kaz", "km": "khm", "kn": "kan", "ko": "kor", "ky": "kir", "lg": "lug", "lo": "lao", "lt": "lit",
    "lv": "lvs", "mk": "mkd", "ml": "mal", "mn": "khk", "mr": "mar", "ms": "zlm", "mt": "mlt", "my": "mya", "ne": "npi",
    "nl": "nld", "nn": "nno", "no": "nob", "ny": "nya", "or": "ory", "pa": "pan", "pl": "pol", "ps": "pbt", "pt": "por",
    "ro": "ron", "ru": "rus", "sd": "snd", "sk": "slk", "sl": "slv", "sn": "sna", "so": "som", "sr": "srp", "sv": "swe",
    "sw": "swh", "ta": "tam", "te": "tel", "tg": "tgk", "th": "tha", "tl": "tgl", "tr": "tur", "uk": "ukr", "ur": "urd",
    "uz": "uzn", "vi": "vie", "yo": "yor", "yue": "yue", "zh": "cmn", "zu": "zul",
}  # fmt: skip
"""Codes of two letters, and the codes of the model."""


class PromptForm(msgspec.Struct, frozen=True, kw_only=True):
    """The prompts of one family."""

    tokens: tuple[str, ...]
    languages: frozenset[str]
    translates: bool
    codes: Mapping[str, str] = {}
    """Of languages in tokens, where they differ."""


FORMS: Mapping[str, PromptForm] = {
    "canary": PromptForm(
        tokens=TOKENS, translates=True,
        languages=frozenset(CANARY_LANGUAGES),
    ),
    "cohere": PromptForm(
        tokens=("▁", *TOKENS), translates=False,
        languages=frozenset(COHERE_LANGUAGES),
    ),
    "seamless": PromptForm(
        tokens=("</s>", "__{target}__"), translates=True, languages=frozenset(SEAMLESS_LANGUAGES), codes=SEAMLESS_LANGUAGES,
    ),
}  # fmt: skip
"""`SpeechConfig.form` -> its prompts."""


class PromptedRecognizer(Recognizer):
    def __init__(self, serving: Serving) -> None:
        super().__init__(serving)
        speech = serving.engine.config.model.speech
        assert speech is not None
        self._form, self.longest = FORMS[speech.form], speech.frames * HOP

    def check(self, request: AudioRequest, task: str) -> None:
        if task == "translate" and not self._form.translates:
            raise ApiError("model: translation is not supported by this model; use /v1/audio/transcriptions", "model")
        if request.has_timestamps:
            form = request.response_format
            raise ApiError(f"response_format: {form}: this model gives no times; use json or text", "response_format")
        if request.prompt.strip():
            raise ApiError("prompt: this model reads no text before a transcript; omit it", "prompt")
        self.write_prompt(request, task)

    def write_prompt(self, request: AudioRequest, task: str) -> list[int]:
        """The prompt's token ids. ApiError."""
        source = read_language(request.language or DEFAULT, self._form.languages)
        target = "en" if task == "translate" else source
        ids = []
        codes = {"source": self._form.codes.get(source, source), "target": self._form.codes.get(target, target)}
        for name in (each.format(**codes) for each in self._form.tokens):
            found = self.tokenizer.id_of(name)
            if found is None:
                raise ApiError(f"model: its tokenizer has no {name}, so it writes no such transcripts here", "model")
            ids.append(found)
        return ids

    async def prepare(self, request: AudioRequest, sound: np.ndarray, task: str, ticket: Ticket) -> WindowedAudio:
        cuts, ids = windows(sound, self.longest, RATE), self.write_prompt(request, task)
        prompts = [{"prompt_token_ids": ids, "multi_modal_data": {"audio": sound[w.begin : w.end]}} for w in cuts]
        return WindowedAudio(sound, cuts, prompts, read_language(request.language or DEFAULT, self._form.languages))

    def join(self, before: str, after: str) -> str:
        return join_words(before, after)
