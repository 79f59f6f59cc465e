"""Models that read audio in conversations and are trained to transcribe: the prompt for a transcript, by architecture."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Transcriber(msgspec.Struct, frozen=True, kw_only=True):
    """The request for a transcript, as one model is trained to read it."""

    seconds: float
    """The longest part of a clip for one request, where the context has room for it."""
    instruction: str = ""
    """Text after the audio. "": none."""
    translation: str = ""
    """The same for a translation into English. "": the model does not translate."""
    template: str = ""
    """Template of the prompt, instead of the model's chat template. It gets `language`, a code or "". AUDIO in it becomes
    the placeholder's text, in quotes."""
    languages: Mapping[str, str] = {}
    """Code -> name in the prompt. Empty: the prompt names no language."""
    prefill: str = ""
    """The first words of the answer where the language is known. "{}": its name."""
    mark: str = ""
    """The transcript begins after it, where the answer has it."""
    context: bool = False
    """Is text before the transcript accepted, as system message?"""


QWEN3_LANGUAGES = {
    "ar": "Arabic", "yue": "Cantonese", "zh": "Chinese", "cs": "Czech", "da": "Danish", "nl": "Dutch", "en": "English",
    "fil": "Filipino", "fi": "Finnish", "fr": "French", "de": "German", "el": "Greek", "hi": "Hindi", "hu": "Hungarian",
    "id": "Indonesian", "it": "Italian", "ja": "Japanese", "ko": "Korean", "mk": "Macedonian", "ms": "Malay", "fa": "Persian",
    "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "es": "Spanish", "sv": "Swedish", "th": "Thai",
    "tr": "Turkish", "vi": "Vietnamese",
}  # fmt: skip
VOXTRAL = "{{ bos_token }}[INST][BEGIN_AUDIO]{{ AUDIO }}[/INST]{% if language %}lang:{{ language }}{% endif %}[TRANSCRIBE]"
"""mistral-common's request for a transcript."""
FUN_ASR = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n语音转写"
    "{% if language %}成{{ {'en': '英文', 'ja': '日文', 'zh': '中文'}[language] }}{% endif %}：{{ AUDIO }}<|im_end|>\n"
    "<|im_start|>assistant{{ '\n' }}"
)
"""FunASR's request for a transcript, which names the language in Chinese."""
GRANITE = Transcriber(
    seconds=30, instruction="can you transcribe the speech into a written format?",
    translation="translate the speech to English",
)  # fmt: skip
QWEN3 = Transcriber(seconds=1200, languages=QWEN3_LANGUAGES, prefill="language {}<asr_text>", mark="<asr_text>", context=True)
TRANSCRIBERS: Mapping[str, Transcriber] = {
    "FunAsrNanoForConditionalGeneration": Transcriber(
        seconds=30, template=FUN_ASR, languages={code: code for code in ("en", "ja", "zh")}
    ),
    "GlmAsrForConditionalGeneration": Transcriber(seconds=600, instruction="Please transcribe this audio into text"),
    "GraniteSpeechForConditionalGeneration": GRANITE,
    "GraniteSpeechPlusForConditionalGeneration": GRANITE,
    "Qwen3ASRForConditionalGeneration": QWEN3,
    "Qwen3ASRRealtimeGeneration": QWEN3,
    "VoxtralForConditionalGeneration": Transcriber(
        seconds=1800, template=VOXTRAL, languages={c: c for c in ("ar", "de", "en", "es", "fr", "hi", "it", "nl", "pt")}
    ),
}  # fmt: skip
