"""How rerankers that are language models want a query and a document written, where their tokenizer does not join the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from thalweg.errors import RequestError
from thalweg.text.cut import TokenizedText, Truncation, first_tokens

if TYPE_CHECKING:
    from thalweg.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """What stands around the texts. Of a pair that is too long the end of the document is cut."""

    before: str
    instruction: str | None
    """Where a request says none. None: there is no place for one."""
    words: tuple[str, str, str]
    """Before the instruction, the query and the document."""
    after: str
    written: str | None
    """A query that begins so was written in this form by the caller: it is joined to its document as it is."""
    special: bool = False
    """Does the tokenizer put around the pair what it puts around a text?"""


FORMS: Mapping[str, PairTemplate] = MappingProxyType({
    "qwen3-reranker": PairTemplate(
        before="<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
        instruction="Given a web search query, retrieve relevant passages that answer the query",
        words=("<Instruct>: ", "\n<Query>: ", "\n<Document>: "),
        after="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        written="<|im_start|>",
    ),
    "nemotron-rerank": PairTemplate(
        before="", instruction=None, words=("", "question:", " \n \n passage:"), after="", written=None, special=True
    ),
})  # fmt: skip
"""By `Pooling.form` of models.tail."""


def write_pair(
    tokenizer: Tokenizer,
    form: PairTemplate,
    first: str,
    second: str,
    cut: Truncation | None,
    most: tuple[int, int],
    instruction: str | None,
) -> TokenizedText:
    """A pair in this form. Special tokens in the texts are letters there. RequestError as `read_pair`."""
    if most != (0, 0):
        first, second = (first_tokens(tokenizer, t, n) if n else t for t, n in zip((first, second), most, strict=True))
    middle, data = "", []
    asked = "" if form.instruction is None else form.instruction if instruction is None else instruction
    for word, text in zip(form.words, (asked, first, second), strict=True):
        start = len(middle) + len(word)
        middle += word + text
        data.append((start, start + len(text)))
    before, after = (tokenizer.encode(text, False) for text in (form.before, form.after))
    ids = tokenizer.encode_with_data(middle, data, False)
    if form.special:
        whole = tokenizer.encode_with_data(middle, data, True)
        first_at = next(k for k in range(len(whole) - len(ids) + 1) if whole[k : k + len(ids)] == ids)
        before, after = whole[:first_at], whole[first_at + len(ids) :]
    if cut is not None:
        room = cut.keep - len(before) - len(after)
        if room < 1:
            raise RequestError(
                f"truncate_prompt_tokens: {cut.keep} leaves no room beside the {len(before) + len(after)} tokens around a pair",
                "truncate_prompt_tokens",
            )
        ids = ids[:room]
    made = [*before, *ids, *after]
    return TokenizedText(made, [0] * len(made))
