"""Renders chat templates in a jinja2 sandbox. Only this module imports jinja2.

The environment is that of transformers (https://huggingface.co/docs/transformers/chat_templating_writing), so that its
templates render the same. No tokenizer, no HTTP. The sandbox prevents a template from reaching Python's internals. It does not
limit a template's time or memory. thalweg.template.jail does, and every server renders there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from thalweg.errors import CheckpointError, RequestError
from thalweg.template.arguments import ArgumentText
from thalweg.template.messages import ContentFormat, check_variables, normalise

_END_MARK = "\ue0f1end-of-final-message\ue0f1 "
"""Appended to the message to continue, to find its end in the rendered text. The final space reveals whether a template strips
its content."""


MAX_WORDS = 1000
"""Most characters of a template's error message to report."""


_EVERYTHING = r"""{{ "\n" }}{{ messages | tojson }}{{ messages | pprint }}{{ "a b" | wordwrap(2) }}{{ "<b>&lt;" | striptags }}
{{ lipsum(n=1) }}"""


def load_all() -> None:
    """Make jinja2 load its lazy imports, for a process that will lose access to files."""
    import jinja2.debug  # noqa: F401 - on its first error

    ChatTemplate(_EVERYTHING).render([{"role": "user", "content": "x"}])


class OutputLimitError(Exception):
    """The template's output exceeded its limit."""


class ChatTemplate:
    """One compiled template. Immutable. Rendering is thread-safe."""

    def __init__(self, source: str, variables: Mapping[str, Any] | None = None) -> None:
        """variables: always defined in the template (bos_token, eos_token ...). CheckpointError if the source does not
        parse."""
        self.source = source
        self.variables = dict(variables or {})
        environment = _environment()
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except jinja2.TemplateError as e:
            raise CheckpointError(f"chat template: line {getattr(e, 'lineno', '?')}: {_short(e)}; correct the template") from e
        except (RecursionError, SyntaxError, ValueError) as e:  # nested too deep for the parser, jinja2's or Python's
            raise CheckpointError(f"chat template: {type(e).__name__}: {_short(e)}; correct the template") from e
        self.content_format: ContentFormat = "openai" if _iterates_content(tree) else "string"
        """Format of the messages for this template (see `normalise`), derived from its source."""

    def render(
        self,
        messages: Any,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        *,
        content_format: ContentFormat | None = None,
        **kwargs: Any,
    ) -> str:
        """`fill` with further template variables as keyword arguments."""
        return self.fill(
            messages, tools, add_generation_prompt, continue_final_message, content_format=content_format, kwargs=kwargs
        )

    def fill(
        self,
        messages: Any,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        *,
        content_format: ContentFormat | None,
        kwargs: Mapping[str, Any],
        signs: Mapping[str, str] | None = None,
        now: datetime | None = None,
        most: int | None = None,
    ) -> str:
        """The prompt text of these messages, checked and converted to `content_format` (None = this template's format).

        tools: JSON schemas. kwargs: further variables for the template. signs: kind of media -> placeholder, for templates that
        read strings. now: the time for strftime_now. None: the clock.

        RequestError (param "messages") with the template's message if it rejects them, or (param "chat_template_kwargs") if
        kwargs would replace one of RESERVED or one of `variables`. OutputLimitError beyond `most` characters."""
        check_variables(kwargs, self.variables)
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other; set add_generation_prompt to false",
                "continue_final_message",
            )
        chat = [_with_written(m) for m in normalise(messages, content_format or self.content_format, signs)]
        if continue_final_message:
            chat = _mark_final(chat)
        pieces = self._template.generate(
            messages=chat,
            tools=list(tools) if tools else None,
            add_generation_prompt=add_generation_prompt,
            strftime_now=_clock(now),
            **{"documents": None, **self.variables, **kwargs},
        )
        try:
            text = _join(pieces, most)
        except (MemoryError, OutputLimitError):
            raise
        except jinja2.TemplateError as e:
            raise RequestError(f"the chat template refuses these messages: {_short(e)}", "messages") from e
        except Exception as e:  # a template can raise anything its expressions can
            words = f"the chat template fails on these messages: {type(e).__name__}: {_short(e)}"
            raise RequestError(words, "messages") from e
        if not _is_text(text):
            raise RequestError(
                "the chat template wrote half a surrogate pair, which is not valid text; correct it", "chat_template"
            )
        return _cut_final(text) if continue_final_message else text


def _with_written(message: dict[str, Any]) -> dict[str, Any]:
    """The message, with text arguments of its calls as `ArgumentText`."""
    calls = message.get("tool_calls")
    if not calls or not any(isinstance(c["function"]["arguments"], str) for c in calls):
        return message
    functions = [c["function"] for c in calls]
    shown = [{**f, "arguments": ArgumentText(f["arguments"])} if isinstance(f["arguments"], str) else f for f in functions]
    return {**message, "tool_calls": [{**c, "function": f} for c, f in zip(calls, shown, strict=True)]}


def _join(pieces: Iterable[str], most: int | None) -> str:
    if most is None:
        return "".join(pieces)
    out, size = [], 0
    for piece in pieces:
        size += len(piece)
        if size > most:
            raise OutputLimitError
        out.append(piece)
    return "".join(out)


def _short(e: Exception) -> str:
    """A safe error message. A template controls its length and characters. Messages of OSError and ImportError would reveal
    file names."""
    words = e.strerror or "" if isinstance(e, OSError) else "" if isinstance(e, ImportError) else str(e)
    if not _is_text(words):
        words = words.encode(errors="backslashreplace").decode()
    return words if len(words) <= MAX_WORDS else words[:MAX_WORDS] + " ..."


def _is_text(text: str) -> bool:
    """Is the text encodable as UTF-8?"""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _clock(now: datetime | None) -> Callable[[str], str]:
    return lambda format: (now or datetime.now()).strftime(format)


# ---------------------------------------------------------------- continue_final_message


def _mark_final(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, with the mark after the last text of the last message."""
    content = messages[-1].get("content") if messages else None
    if isinstance(content, list) and content and isinstance(content[-1], Mapping) and isinstance(content[-1].get("text"), str):
        marked: Any = [*content[:-1], {**content[-1], "text": content[-1]["text"] + _END_MARK}]
    elif isinstance(content, str):
        marked = content + _END_MARK
    else:
        raise RequestError("continue_final_message: the final message has no text to continue", "messages")
    return [*messages[:-1], {**messages[-1], "content": marked}]


def _cut_final(text: str) -> str:
    """The rendered text up to the mark. If the template stripped the content, the result is stripped too."""
    at = text.rfind(_END_MARK.strip())
    if at < 0:
        raise RequestError("continue_final_message: the chat template does not show the final message's content", "messages")
    return text[:at] if text.startswith(_END_MARK, at) else text[:at].rstrip()


# ---------------------------------------------------------------- the environment


class _Generation(Extension):
    """{% generation %} ... {% endgeneration %} marks assistant text for training. Here it renders only its body."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """namespace() without names that could reach Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a chat template cannot set {name!r} on a namespace")


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["namespace"] = _Namespace
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, without the HTML escapes of jinja2's filter. `ArgumentText` renders as its text, or as a string within a
    value."""
    if isinstance(value, ArgumentText):
        return str(value)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_json_default
    )


def _json_default(value: Any) -> str:
    if isinstance(value, ArgumentText):
        return str(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _iterates_content(tree: nodes.Template) -> bool:
    """Does the template loop over a message's content (or over a variable set from it)?"""
    names = {
        s.target.name
        for s in tree.find_all(nodes.Assign)
        if isinstance(s.target, nodes.Name) and any(_is_content(e) for e in [s.node, *s.node.find_all(nodes.Expr)])
    }
    for loop in tree.find_all(nodes.For):
        source = loop.iter
        while isinstance(source, nodes.Filter) and source.node is not None:
            source = source.node
        if _is_content(source) or (isinstance(source, nodes.Name) and source.name in names):
            return True
    return False


def _is_content(e: nodes.Node) -> bool:
    if isinstance(e, nodes.Getattr):
        return e.attr == "content"
    return isinstance(e, nodes.Getitem) and isinstance(e.arg, nodes.Const) and e.arg.value == "content"
