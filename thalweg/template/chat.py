"""Converts a conversation to a prompt: checks it, renders it in a jail, and encodes it so that user data stays text.

Offline use and the server share this code. It imports no template library: only the jail does.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Protocol, TypedDict, Unpack

import msgspec

from thalweg.errors import CheckpointError, RequestError, TemplateLimitError
from thalweg.template.fold import fold_system_messages, shows
from thalweg.template.jail import BrokenTemplateError, Jail, LimitError
from thalweg.template.messages import ContentFormat, check_variables, normalise
from thalweg.template.select import Templates
from thalweg.template.specials import Span, SpecialText, TokenMarks
from thalweg.template.wire import RenderTask
from thalweg.text.encoder import HUGE, give_back

OWN_SECONDS, GUEST_SECONDS = 2.0, 0.5
"""CPU seconds for one rendering: with a template of the model or the operator, and with a request's template."""
CELLS = 2
"""Concurrent renderings. Templates of requests have a separate process."""
LONG = 32768
"""Characters. Longer prompts need milliseconds to encode, and use a separate thread."""


class TextExpander(Protocol):
    """Expands a rendered text, and adjusts the spans of callers' data."""

    @property
    def signs(self) -> Mapping[str, str]:
        """Kind of media -> placeholder text, for templates that read strings."""

    def __call__(self, text: str, data: Sequence[Span], /) -> tuple[str, list[Span]]: ...


class RenderOptions(TypedDict, total=False):
    """Options for rendering a conversation: arguments of `Chat.render`."""

    template: str | None
    """The request's template, or the name of one of the model's. None: `Templates.pick` selects one."""
    add_generation_prompt: bool
    continue_final_message: bool
    content_format: ContentFormat | None
    """None: the format that the template reads."""
    kwargs: Mapping[str, Any] | None
    """Further variables for the template, and `chat_template`, a name."""
    expand: TextExpander | None
    """Messages may have media parts, {"type": KIND}. This inserts their placeholders into the text."""


class TextTokenizer(Protocol):
    """The interface of a tokenizer for chats."""

    special_texts: tuple[str, ...]

    @property
    def special_tokens(self) -> Mapping[str, str]: ...

    def encode_with_data(self, text: str, data: Sequence[Span], add_special_tokens: bool = True) -> list[int]: ...


class Chat:
    """A tokenizer with its chat templates and the rendering processes. Thread-safe."""

    def __init__(self, tokenizer: TextTokenizer, templates: Templates | str | None, workers: int = CELLS) -> None:
        """templates: those of the model and the operator, or the source of the only one. None: only requests' templates.
        workers: rendering processes. They start on first use, or with `prepare`."""
        self.templates = templates if isinstance(templates, Templates) else Templates(fixed=templates)
        self.source, self.workers = self.templates.pick(tools=False), workers
        """source: the template for conversations without tools. None: there is none."""
        self.variables = dict(tokenizer.special_tokens)
        """Variables for every template: bos_token, eos_token ..."""
        self._tokenizer = tokenizer
        self._specials = SpecialText(tokenizer.special_texts)
        self._own, self._guests = Jail(workers, OWN_SECONDS), Jail(1, GUEST_SECONDS)
        self._own_threads = ThreadPoolExecutor(workers, "chat-template")
        self._guest_threads = ThreadPoolExecutor(1, "request-template")
        self._encoding = ThreadPoolExecutor(1, "chat-encode")

    def prepare(self) -> None:
        """Start a process for the first rendering, without waiting for it."""
        if self.source is not None:
            self._own.prepare()

    def check_ahead(self) -> None:
        """As `prepare`, and compile the template, so that `check` need not wait. Errors are raised later, by `check`."""
        if self.source is not None:
            self._own_threads.submit(self.check)

    def check(self) -> None:
        """CheckpointError if the template does not parse. Waits for the process (a tenth of a second)."""
        for source in dict.fromkeys((self.source, self.templates.pick(tools=True))):
            if source is not None:
                _check(self._own, source, self.variables)

    def close(self) -> None:
        """End the idle processes."""
        self._own.close()
        self._guests.close()

    def prompt(
        self,
        messages: Any,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_special_tokens: bool = False,
        most_chars: float = math.inf,
        **options: Unpack[RenderOptions],
    ) -> dict[str, Any]:
        """{"prompt": text, "prompt_token_ids": ids} of a conversation, as input for the engine.

        tools: JSON schemas. add_special_tokens: add the tokenizer's special tokens, although most templates write them.
        most_chars: longer prompts are rejected before they are encoded.

        RequestError, with the field in param: wrong messages, an error raised by the template, a limit exceeded.
        CheckpointError if the model's template does not parse. TemplateLimitError if it exceeds a limit. UnavailableError: try
        again."""
        return self._encode(*self._text(messages, tools, most_chars, None, options), add_special_tokens)

    async def prompt_async(
        self,
        request: Callable[[], tuple[Any, Any]],
        *,
        add_special_tokens: bool = False,
        most_chars: float = math.inf,
        last: int | None = None,
        **options: Unpack[RenderOptions],
    ) -> dict[str, Any]:
        """As `prompt`, off the event loop. `request` creates messages and tools there. last: only this many characters at the
        end are needed."""
        loop = asyncio.get_running_loop()

        def work() -> tuple[str, list[Span], dict[str, Any] | None]:
            text, data = self._text(*request(), most_chars, last, options)
            return text, data, self._encode(text, data, add_special_tokens) if len(text) < LONG else None

        threads = self._own_threads if self.trusts(options.get("template")) else self._guest_threads
        text, data, done = await loop.run_in_executor(threads, work)
        if done is not None:
            return done
        # A long text would keep the next conversation waiting.
        return await loop.run_in_executor(self._encoding, self._encode, text, data, add_special_tokens)

    def _text(
        self, messages: Any, tools: Any, most_chars: float, last: int | None, options: RenderOptions
    ) -> tuple[str, list[Span]]:
        """The text to encode for a conversation, and its spans as in `render`."""
        text, data = self.render(messages, tools, **options)
        _check_length(text, most_chars, options.get("expand") is not None)
        return _end(text, data, last)

    def _encode(self, text: str, data: list[Span], add_special_tokens: bool) -> dict[str, Any]:
        ids = self._tokenizer.encode_with_data(text, data, add_special_tokens)
        if len(text) > HUGE:
            give_back()
        return {"prompt": text, "prompt_token_ids": ids}

    def render(
        self,
        messages: Any,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        content_format: ContentFormat | None = None,
        kwargs: Mapping[str, Any] | None = None,
        expand: TextExpander | None = None,
        own: bool = False,
    ) -> tuple[str, list[Span]]:
        """The prompt's text, and the spans where callers wrote out special tokens. Errors as `prompt`. If the template rejects
        system messages, they move into users' turns (`fold`). own: the template is the model's or the operator's."""
        template, kwargs = self.templates.read_kwargs(template, kwargs)
        source, own = self.templates.find(template, bool(tools)), own or self.trusts(template)
        check_variables(kwargs, self.variables)
        # The richer form, from which templates that read strings get them unchanged.
        checked = normalise(messages, "openai", None if expand is None else expand.signs)
        given = [checked, list(tools) if tools else None, kwargs]
        (chat, schemas, variables), marks = self._specials.mark(given)
        task = RenderTask(
            source=source,
            variables=self.variables,
            messages=chat,
            tools=schemas,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            content_format=content_format,
            kwargs=variables,
            signs={} if expand is None else dict(expand.signs),
            now=datetime.now().isoformat(),
        )
        system = any(m["role"] == "system" for m in checked)
        text = self._run(task, own, marks, folding=system)
        text, data = marks.take(text) if marks else (text, [])
        return (text, data) if expand is None else expand(text, data)

    def _run(self, task: RenderTask, own: bool, marks: TokenMarks | None, *, folding: bool) -> str:
        """The template's output. Errors name the template's owner. folding: as `_folding`."""
        jail = self._own if own else self._guests
        try:
            return self._folding(jail, task) if folding else jail.run(task)
        except BrokenTemplateError as e:
            if own:
                raise CheckpointError(str(e)) from None
            raise RequestError(f"chat_template: {str(e).removeprefix('chat template: ')}", "chat_template") from None
        except LimitError as e:
            if own:
                raise TemplateLimitError(f"the model's own {e}") from None
            raise
        except RequestError as e:  # may quote the messages
            raise RequestError(marks.remove(str(e)) if marks else str(e), e.param) from None

    def trusts(self, template: str | None) -> bool:
        """Is it a template of the model or the operator? template: as in `render`."""
        return template is None or template in self.templates.named

    def writer(self, template: str | None = None) -> Callable[[Any, Any, bool], str]:
        """(messages, tools, add_generation_prompt) -> only the text, for deriving formats from a template's output."""
        own = template is not None and self.templates.owns(template)
        return lambda messages, tools, prompt: self.render(
            messages, tools, template=template, add_generation_prompt=prompt, own=own
        )[0]

    def _folding(self, jail: Jail, task: RenderTask) -> str:
        """The conversation rendered unchanged, or else with its system messages folded. If both fail, the first
        RequestError."""
        assert task.messages is not None
        why: RequestError | None = None
        text = ""
        try:
            text = jail.run(task)
            if shows(text, task.messages):
                return text
        except LimitError:
            raise
        except RequestError as e:
            why = e
        for messages in fold_system_messages(task.messages):
            with contextlib.suppress(RequestError):
                found = jail.run(msgspec.structs.replace(task, messages=messages))
                if why is not None or shows(found, task.messages):
                    return found
        if why is not None:
            raise why
        return text


def _end(text: str, data: list[Span], last: int | None) -> tuple[str, list[Span]]:
    """At most the last characters of a text (`last`), with the spans within."""
    cut = 0 if last is None else max(0, len(text) - last)
    return (text[cut:], [(max(0, a - cut), b - cut) for a, b in data if b > cut]) if cut else (text, data)


def _check_length(text: str, most_chars: float, items: bool) -> None:
    """items: the prompt has media, which may add no text."""
    if not text and not items:
        raise RequestError("messages: the chat template rendered an empty prompt", "messages")
    if len(text) > most_chars:  # no need to encode it to know
        raise RequestError(
            f"prompt: {len(text)} characters, as rendered from the messages, cannot fit the context; shorten them", "prompt"
        )


def check_template(source: str) -> None:
    """CheckpointError if the template does not parse. It is compiled in a jail, like every template."""
    jail = Jail(1, OWN_SECONDS)
    try:
        _check(jail, source, {})
    finally:
        jail.close()


def _check(jail: Jail, source: str, variables: dict[str, Any]) -> None:
    try:
        jail.run(RenderTask(source=source, variables=variables))
    except (BrokenTemplateError, RequestError) as e:
        raise CheckpointError(str(e)) from None
