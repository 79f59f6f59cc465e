"""Prompt formats of rerankers based on language models, for a query and a document that the tokenizer does not join."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from thalweg.errors import RequestError
from thalweg.text.cut import TokenizedText, Truncation, first_tokens

if TYPE_CHECKING:
    from thalweg.text.tokenizer import Tokenizer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """The text around the query and the document. If a pair is too long, the document's end is cut off."""

    before: str
    instruction: str | None
    """Default instruction. None: the format has no instruction."""
    words: tuple[str, str, str]
    """Texts before the instruction, the query and the document."""
    after: str
    written: str | None
    """Beginning of a query that the caller has already formatted: it is joined to its document unchanged."""
    special: bool = False
    """Does the pair get the tokenizer's tokens around a text?"""
    media: tuple[str, str] | None = None
    """The text around the placeholder of an image. None: queries and documents hold text only."""
    empty: str = ""
    """Text of a query or document that holds nothing."""
    document_first: bool = False
    """Is the document before the query?"""
    last: tuple[int, ...] = ()
    """Ids after all text: tokens that the tokenizer may not write."""


FORMS: Mapping[str, PairTemplate] = MappingProxyType({
    "qwen3-reranker": PairTemplate(
        before="<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
        instruction="Given a web search query, retrieve relevant passages that answer the query",
        words=("<Instruct>: ", "\n<Query>: ", "\n<Document>: "),
        after="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        written="<|im_start|>",
    ),
    "qwen3-vl-reranker": PairTemplate(
        before="<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
        instruction="Given a search query, retrieve relevant candidates that answer the query.",
        words=("<Instruct>: ", "<Query>:", "\n<Document>:"), after="<|im_end|>\n<|im_start|>assistant\n",
        written="<|im_start|>", media=("<|vision_start|>", "<|vision_end|>"), empty="NULL",
    ),
    "nemotron-rerank": PairTemplate(
        before="", instruction=None, words=("", "question:", " \n \n passage:"), after="", written=None, special=True
    ),
    "jina-reranker-m0": PairTemplate(
        before="", instruction=None, words=("", "\n**Query**:\n", "**Document**:\n"), after="", written=None,
        media=("<|vision_start|>", "<|vision_end|>"), document_first=True, last=(100,),
    ),
})  # fmt: skip
"""`Pooling.form` of models.tail -> format."""


def write_pair(
    tokenizer: Tokenizer,
    form: PairTemplate,
    first: str,
    second: str,
    cut: Truncation | None,
    most: tuple[int, int],
    instruction: str | None,
) -> TokenizedText:
    """A pair in this format. Special tokens in the texts are encoded as plain text. RequestError as `read_pair`."""
    if most != (0, 0):
        first, second = (first_tokens(tokenizer, t, n) if n else t for t, n in zip((first, second), most, strict=True))
    before, ids, after = _encode_pair(tokenizer, form, first, second, instruction)
    if cut is not None:
        around = len(before) + len(after)
        room = cut.keep - around
        if room < 1:
            raise RequestError(
                f"truncate_prompt_tokens: {cut.keep} leaves no room for text: {around} tokens are needed around it",
                "truncate_prompt_tokens",
            )
        if form.document_first:
            ids = _cut_document(tokenizer, form, first, second, ids, room)
        ids = ids[:room]
    tokens = [*before, *ids, *after]
    return TokenizedText(tokens, [0] * len(tokens))


def _encode_pair(
    tokenizer: Tokenizer, form: PairTemplate, first: str, second: str, instruction: str | None
) -> tuple[list[int], list[int], list[int]]:
    """(the tokens before the pair, of it, after it)."""
    middle, data = "", []
    task = "" if form.instruction is None else form.instruction if instruction is None else instruction
    for word, text in _order(form, (task, first or form.empty, second or form.empty)):
        start = len(middle) + len(word)
        middle += word + text
        data.append((start, start + len(text)))
    before, after = (tokenizer.encode(text, False) for text in (form.before, form.after))
    ids = tokenizer.encode_with_data(middle, data, False)
    if form.special:
        whole = tokenizer.encode_with_data(middle, data, True)
        first_at = next(k for k in range(len(whole) - len(ids) + 1) if whole[k : k + len(ids)] == ids)
        before, after = whole[:first_at], whole[first_at + len(ids) :]
    return before, ids, [*after, *form.last]


def _order(form: PairTemplate, values: tuple[T, T, T]) -> list[tuple[str, T]]:
    """(text before it, value) of the instruction, the query and the document, in the format's order."""
    task, query, document = zip(form.words, values, strict=True)
    return [task, document, query] if form.document_first else [task, query, document]


def _cut_document(tokenizer: Tokenizer, form: PairTemplate, first: str, second: str, ids: list[int], room: int) -> list[int]:
    """The tokens of a pair whose document is first, with the document's end left out as far as needed and possible."""
    size = len(tokenizer.encode(second, False))
    while len(ids) > room and size:
        size = max(0, size - (len(ids) - room))
        _, ids, _ = _encode_pair(tokenizer, form, first, first_tokens(tokenizer, second, size) if size else "", None)
    return ids


def write_media_pair(
    tokenizer: Tokenizer,
    form: PairTemplate,
    sides: Sequence[Sequence[tuple[str, bool]]],
    expand: Callable[[str, Sequence[tuple[int, int]]], tuple[str, list[tuple[int, int]]]],
    instruction: str | None,
) -> list[int]:
    """The tokens of a pair with media in this format. sides: (text, was it written by the caller?) of each part of the query
    and of the document. expand: inserts the placeholders of media. Special tokens of callers are encoded as plain text."""
    task = "" if form.instruction is None else form.instruction if instruction is None else instruction
    query, document = (side if any(text for text, _ in side) else [(form.empty, False)] for side in sides)
    pieces = [(form.before, False)]
    for word, side in _order(form, ([(task, True)], query, document)):
        pieces += [(word, False), *side]
    whole, data = "", []
    for text, own in (*pieces, (form.after, False)):
        if own:
            data.append((len(whole), len(whole) + len(text)))
        whole += text
    return [*tokenizer.encode_with_data(*expand(whole, data), False), *form.last]
