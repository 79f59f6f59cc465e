"""Small conversations rendered by a chat template, with words that occur nowhere else."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from thalweg.errors import ThalwegError

Render = Callable[[list[dict[str, Any]], list[dict[str, Any]], bool], str]
"""(messages, tools, add a generation prompt?) -> the prompt's text. ThalwegError if the template rejects the messages."""
NAMES = ("zq_findit", "zq_sendit")
KEYS = ("zqalpha", "zqbeta")
WORD, NUMBER = "zqviolet", 48151
CONTENT, THOUGHT, QUESTION = "Zqcontent", "Zqthought", "Zqquestion"
IDS = ("zqid00001", "zqid00002")
"""Nine letters and digits: some templates accept no other ids."""
BEFORE, AFTER = "functions.", ":"
"""Text around the name in ids made from it: functions.NAME:0."""
MOST = 1 << 14
"""Characters that a template may add for a turn. Longer renderings are ignored."""
PIECES = re.compile(r"<[^<>]*>?|\[[^\[\]]*\]?|\s+|[^<\[\s]+")
"""Tags, words and white space: where markers may begin and end."""
SCHEMA = {
    "type": "object",
    "properties": {
        KEYS[0]: {"type": "string", "description": "a"},
        KEYS[1]: {"type": "integer", "description": "b"},
        "zqgamma": {"type": "boolean", "description": "c"},
        "zqdelta": {"type": "array", "description": "d", "items": {"type": "integer"}},
    },
    "required": [KEYS[0]],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = dict.fromkeys(NAMES, SCHEMA)
TOOLS = [{"type": "function", "function": {"name": n, "description": "does it", "parameters": SCHEMA}} for n in NAMES]
ASK = {"role": "user", "content": QUESTION}


class Probes:
    """A template's renderings of turns after one question."""

    def __init__(self, render: Render) -> None:
        """ThalwegError if the template does not render the question."""
        self._render = render
        self._written: dict[str, str | None] = {}
        self.indexed = False
        """Are ids of calls made of their names?"""
        self.question = self._after(QUESTION, render([ASK], TOOLS, False))
        """Text that it renders after the question, before any answer."""
        self.prompt = self._after(QUESTION, render([ASK], TOOLS, True))
        """The same with a generation prompt."""

    def turn(self, content: str = "", thought: str = "", calls: Sequence[dict[str, Any]] = ()) -> str | None:
        """The text that it renders for an answer after the question. None: it rejects the answer, or the text is too long."""
        key = repr((content, thought, calls))
        if key not in self._written:
            self._written[key] = self._turn(content, thought, calls)
        return self._written[key]

    def _turn(self, content: str, thought: str, calls: Sequence[dict[str, Any]]) -> str | None:
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if thought:
            message |= {"reasoning": thought, "reasoning_content": thought, "thinking": thought}
        if calls:
            message["tool_calls"] = list(calls)
        try:
            text = self._after(QUESTION, self._render([ASK, message], TOOLS, False))
        except ThalwegError:
            return None
        return text if len(text) <= MOST else None

    def body(self, text: str) -> str:
        """A turn's text without the prefix that comes before any answer."""
        return text[common_prefix_length(text, self.question) :]

    def call(self, index: int, arguments: dict[str, Any] | None = None, name: str = "") -> dict[str, Any]:
        """A call of a message. arguments, name: None and "" for those that the derivation searches for."""
        name = name or NAMES[index]
        args = {KEYS[0]: WORD, KEYS[1]: NUMBER} if arguments is None else arguments
        id = f"{BEFORE}{name}{AFTER}{index}" if self.indexed else IDS[index]
        return {"id": id, "type": "function", "function": {"name": name, "arguments": args}}

    @staticmethod
    def _after(word: str, text: str) -> str:
        at = text.rfind(word)
        return text[at + len(word) :] if at >= 0 else text


def common_prefix_length(a: str, b: str) -> int:
    """Length of the common prefix of two texts, in characters."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def pieces(text: str) -> list[str]:
    return PIECES.findall(text)


def same_end(a: str, b: str) -> str:
    """The longest common suffix of two texts, in whole pieces."""
    left, right, n = pieces(a), pieces(b), 0
    while n < min(len(left), len(right)) and left[-1 - n] == right[-1 - n]:
        n += 1
    return "".join(left[len(left) - n :])


def same_begin(a: str, b: str) -> str:
    """The longest common prefix of two texts, in whole pieces."""
    left, right, n = pieces(a), pieces(b), 0
    while n < min(len(left), len(right)) and left[n] == right[n]:
        n += 1
    return "".join(left[:n])


def white_before(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]


def white_after(text: str) -> str:
    return text[len(text.rstrip()) :]
