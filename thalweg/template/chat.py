"""From a conversation to a prompt: checked, rendered in a jail, encoded so that what users wrote stays text.

The one way chat templates are used, offline and in the server. Imports no template library: that is in the jail.
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
"""Processor time for one rendering: with the template of the model or the operator, and with one that came with a
request."""
CELLS = 2
"""Renderings at once. A template that came with a request has a process to itself."""
LONG = 32768
"""Characters. Encoding a longer prompt takes milliseconds, and has a thread of its own."""


class TextExpander(Protocol):
    """Changes a rendered text, and the spans of what callers wrote in it."""

    @property
    def signs(self) -> Mapping[str, str]:
        """What a template that reads strings gets for an item of media, by its kind."""

    def __call__(self, text: str, data: Sequence[Span], /) -> tuple[str, list[Span]]: ...


class RenderOptions(TypedDict, total=False):
    """How a conversation is rendered: arguments of `Chat.render`."""

    template: str | None
    """One that came with the request, or the name of one of the model's. None: `Templates.pick` chooses."""
    add_generation_prompt: bool
    continue_final_message: bool
    content_format: ContentFormat | None
    """None: what the template reads."""
    kwargs: Mapping[str, Any] | None
    """More variables for the template, and `chat_template`, a name."""
    expand: TextExpander | None
    """Messages may hold parts of media, {"type": KIND}, and this puts what stands for them into the text."""


class TextTokenizer(Protocol):
    """What a chat needs of a tokenizer."""

    special_texts: tuple[str, ...]

    @property
    def special_tokens(self) -> Mapping[str, str]: ...

    def encode_with_data(self, text: str, data: Sequence[Span], add_special_tokens: bool = True) -> list[int]: ...


class Chat:
    """A tokenizer with its chat template, and the processes that render. Thread-safe."""

    def __init__(self, tokenizer: TextTokenizer, templates: Templates | str | None, workers: int = CELLS) -> None:
        """templates: those of the model and the operator, or the source of the only one. None: only templates that come with
        a request. workers: processes that render them. Starts nothing: processes start when needed, or with `prepare`."""
        self.templates = templates if isinstance(templates, Templates) else Templates(fixed=templates)
        self.source, self.workers = self.templates.pick(tools=False), workers
        """source: of the template for conversations without tools. None: there is none."""
        self.variables = dict(tokenizer.special_tokens)
        """Variables that every template sees: bos_token, eos_token ..."""
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
        """As `prepare`, and have it read the template, so that `check` need not wait. What is wrong is for that to say."""
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
        """{"prompt": text, "prompt_token_ids": ids} of a conversation, as the engine takes it.

        tools: JSON schemas. add_special_tokens: those the tokenizer adds by itself. Templates write their own. most_chars: a
        longer prompt is refused before it is encoded.

        RequestError, with the field in param: wrong messages, what the template refuses, a limit passed.
        CheckpointError if the model's own template does not parse. TemplateLimitError if that passes a limit.
        UnavailableError: try again."""
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
        """As `prompt`, off the event loop. `request` makes messages and tools there. last: only so many characters at
        the end are needed."""
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
        """What is encoded of a conversation, and the spans as `render` has them."""
        text, data = self.render(messages, tools, **options)
        _check_length(text, most_chars)
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
        """The prompt's text, and the spans of it in which callers wrote special tokens out. Errors as `prompt`. Where the
        template refuses system messages, they are told by users' turns (`fold`). own: the template is the model's or the
        operator's."""
        template, kwargs = self.templates.read_kwargs(template, kwargs)
        source, own = self.templates.find(template, bool(tools)), own or self.trusts(template)
        check_variables(kwargs, self.variables)
        # The richer form: a template that reads strings gets them from it unchanged.
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
        """Whether it is the model's or the operator's. template: as `render` gets it."""
        return template is None or template in self.templates.named

    def writer(self, template: str | None = None) -> Callable[[Any, Any, bool], str]:
        """(messages, tools, add_generation_prompt) -> the text alone, for who learns from what a template writes."""
        own = template is not None and self.templates.owns(template)
        return lambda messages, tools, prompt: self.render(
            messages, tools, template=template, add_generation_prompt=prompt, own=own
        )[0]

    def _folding(self, jail: Jail, task: RenderTask) -> str:
        """Rendered as it is, or else with its system messages folded. RequestError as without, if nothing helps."""
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
    """At most the last characters of a text, and the spans that are left in them."""
    cut = 0 if last is None else max(0, len(text) - last)
    return (text[cut:], [(max(0, a - cut), b - cut) for a, b in data if b > cut]) if cut else (text, data)


def _check_length(text: str, most_chars: float) -> None:
    if not text:
        raise RequestError("messages: the chat template made an empty prompt of them", "messages")
    if len(text) > most_chars:  # no need to encode it to know
        raise RequestError(
            f"prompt: {len(text)} characters, as rendered from the messages, cannot fit the context; shorten them", "prompt"
        )


def check_template(source: str) -> None:
    """CheckpointError if it does not parse. Tried in a jail, as everything."""
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
