"""Conversations of `LLM`: rendered through a chat template, run as prompts, their answers read as turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thalweg.engine.client.chat_turns import ChatTurns
from thalweg.engine.client.frontend import Frontend
from thalweg.engine.client.pairs import join_messages
from thalweg.errors import ConfigError, NotSupportedError, RequestError
from thalweg.lora import LoRARequest
from thalweg.media.kinds.base import MediaItem, MediaSource
from thalweg.media.speakers.answers import DISABLED, SpokenAnswer, read_modalities, request_states
from thalweg.media.speakers.base import Speaker
from thalweg.offline.batches import Batches, UseTqdm
from thalweg.offline.prompts import Prompt, per_prompt
from thalweg.offline.sharing import in_turn
from thalweg.outputs import RequestOutput
from thalweg.params import SamplingParams
from thalweg.template.chat import Chat
from thalweg.template.messages import FORMATS


@dataclass(frozen=True, slots=True)
class ChatRenderer:
    """How the conversations of one call become prompts."""

    frontend: Frontend
    chat: Chat
    template: str | None
    """A source, or a name of one of the model's. None: as `Templates.pick` chooses."""
    tools: list[dict[str, Any]] | None
    kwargs: Mapping[str, Any]
    """More variables of the template."""
    content_format: str
    add_generation_prompt: bool
    continue_final_message: bool

    def render(self, messages: Sequence[Any]) -> list[Prompt]:
        """The prompt of a conversation, or of each of several. RequestError names the field."""
        if self.content_format not in FORMATS:
            message = f"chat_template_content_format must be one of {', '.join(FORMATS)}, not {self.content_format!r:.80}"
            raise RequestError(message, "chat_template_content_format")
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        return [self._render_one(conversation) for conversation in conversations]

    def render_item(self, parts: Sequence[str | MediaSource]) -> Prompt:
        """The prompt of a message of a user with these texts and media. RequestError names the field."""
        media, sources = self.frontend.media, [part for part in parts if not isinstance(part, str)]
        if media is not None and media.whole_prompts:
            text = "\n".join(part for part in parts if isinstance(part, str))
            if not sources:
                return text
            media.check_whole(sources, text, "content")
            return media.whole_prompt(*media.read(sources))
        self._check_template()
        content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": part.kind} for part in parts]
        return self._write([{"role": "user", "content": content}], sources)

    def _check_template(self) -> None:
        if self.template is None and not self.chat.templates.named:
            raise RequestError("chat_template: the model has none; pass chat_template=, or use generate()", "chat_template")

    def _render_one(self, conversation: Sequence[Any]) -> Prompt:
        media, sources = self.frontend.media, list[MediaSource]()
        if media is None or not media.whole_prompts:
            self._check_template()
        if media is not None and isinstance(conversation, list | tuple):
            conversation, sources = media.apart(conversation)
            if media.whole_prompts:
                return self.render_item(join_messages(conversation, sources).parts)
        return self._write(conversation, sources)

    def _write(self, conversation: Sequence[Any], sources: Sequence[MediaSource]) -> Prompt:
        """conversation: with {"type": KIND} for each of the sources."""
        media, items = self.frontend.media, list[MediaItem]()
        if media is not None and sources:
            items = media.read(sources)
        prompt = self.chat.prompt(
            conversation,
            self.tools,
            template=self.template,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            content_format=FORMATS[self.content_format],
            kwargs=self.kwargs,
            expand=media.expand(items) if media is not None and items else None,
        )
        return media.attach(prompt, items) if media is not None and items else prompt


class ChatMethods(Batches):
    """The part of `LLM` for conversations."""

    _talker: Any
    """The `LLM` that speaks the answers. None: there is none."""
    _template: str | None
    """Of every conversation that names none."""
    _parsers: tuple[str | None, str | None]
    """Of tool calls and of reasoning, likewise."""

    @in_turn
    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        tool_call_parser: str | None = None,
        reasoning_parser: str | None = None,
        modalities: Sequence[str] | None = None,
        audio: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation (a list of messages) or several (a list of those) through the chat template.

        The template (the model's, or `chat_template`: text, a file, or the name of one of the model's) runs in a process with
        limits of time, memory and output. With tools a model's `tool_use` is chosen. Special tokens written inside messages
        are text. Outputs have `content`, `reasoning` and, with tools, `tool_calls`. `text` is the whole answer.
        tool_call_parser, reasoning_parser: names of turn formats. None: detected, as docs/tools-and-reasoning.md says.
        modalities: ["text", "audio"] gives outputs with `audio`, of an engine made with enable_talker. audio: the voice, seed
        and temperature of the speech."""
        refuse_mm_processor_kwargs(mm_processor_kwargs)
        self.llm_engine.client.inputs.check_generates()
        renderer = self._renderer(
            chat_template, chat_template_kwargs, tools, chat_template_content_format, add_generation_prompt,
            continue_final_message,
        )  # fmt: skip
        parsers = tool_call_parser or self._parsers[0], reasoning_parser or self._parsers[1]
        turns = ChatTurns(renderer.frontend, renderer.template, tools, *parsers)
        prompts = renderer.render(messages)
        params = per_prompt("sampling_params", sampling_params, len(prompts), renderer.frontend.sampling)
        spoken, written = self._read_speech(modalities, audio, prompts, params)
        marked = [turns.marking(p, prompt) for p, prompt in zip(written, prompts, strict=True)]
        outputs: list[RequestOutput] = self._run(
            self._prepare(prompts, marked, tokenization_kwargs=tokenization_kwargs, lora_request=lora_request), use_tqdm
        )
        for output, param in zip(outputs, params, strict=True):
            turns.read(output, param)
        if spoken is not None and self._talker is not None:
            done = [output for output in outputs if output.error is None]
            for output, speech in zip(done, self._talker.speak_answers(done, spoken.settings, use_tqdm), strict=True):
                output.outputs[0].audio = speech
        return outputs

    def _read_speech(
        self, modalities: Any, audio: Any, prompts: Sequence[Any], params: Sequence[SamplingParams]
    ) -> tuple[SpokenAnswer | None, Sequence[SamplingParams]]:
        """How answers are spoken, and parameters of their texts. None: they are not. RequestError names the field."""
        spoken = read_modalities(modalities, audio, 0)
        if spoken is None:
            return None, params
        speaker = None if self._talker is None else self._talker.llm_engine.frontend.speaker
        if speaker is None:
            raise RequestError(DISABLED, "modalities")
        if spoken.form:
            raise RequestError("audio.format: outputs have samples; omit it", "audio.format")
        speaker.check(spoken.settings)
        return spoken, [self._request_states(speaker, each, prompt) for each, prompt in zip(params, prompts, strict=True)]

    def _request_states(self, speaker: Speaker, params: SamplingParams, prompt: Mapping[str, Any]) -> SamplingParams:
        if not isinstance(params, SamplingParams):
            return params  # an error where it is prepared
        if params.n > 1:
            raise RequestError("n: an answer that is spoken has one choice", "n")
        return request_states(speaker, params, prompt["prompt_token_ids"], self.llm_engine.config.model.returns_states)

    @in_turn
    def preprocess_chat(
        self,
        messages: Sequence[Any],
        *,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[Prompt]:
        """The prompts `chat` would generate from, for `generate`, or for `embed` of a pooling model: one per conversation."""
        return self._renderer(
            chat_template, chat_template_kwargs, tools, chat_template_content_format, add_generation_prompt,
            continue_final_message,
        ).render(messages)  # fmt: skip

    def _renderer(
        self, chat_template: str | None, kwargs: Mapping[str, Any] | None, tools: list[dict[str, Any]] | None, *form: Any
    ) -> ChatRenderer:
        """The template is that of the argument, of a name in `kwargs`, or of the whole LLM. form: the last three fields."""
        frontend = self.llm_engine.frontend
        if frontend.chat is None:
            raise ConfigError("skip_tokenizer_init: there is no tokenizer")
        given = None if chat_template is None else read_template(chat_template, frontend.chat)
        template, rest = frontend.chat.templates.read_kwargs(given, kwargs)
        template = self._template if template is None else template
        return ChatRenderer(frontend, frontend.chat, template, tools, rest, *form)


def refuse_mm_processor_kwargs(mm_processor_kwargs: Mapping[str, Any] | None) -> None:
    """NotSupportedError if there are any."""
    if mm_processor_kwargs:
        raise NotSupportedError("mm_processor_kwargs: images are processed as the model's files say; omit it")


def read_template(template: str, chat: Chat | None) -> str:
    """A template given as text, as a file, or by its name among the model's. RequestError otherwise."""
    named = {} if chat is None else chat.templates.named
    if template in named or "{" in template or "\n" in template:
        return template
    try:
        return Path(template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        names = f" (the model's: {', '.join(sorted(named))})" if named else ""
        message = f"chat_template: {template!r:.80} is neither a template, nor a readable file, nor a name{names}: {e}"
        raise RequestError(message, "chat_template") from None
