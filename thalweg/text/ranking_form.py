"""The prompt of listwise rerankers: a query with all of its documents, each followed by a token whose vector is compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from thalweg.errors import RequestError

if TYPE_CHECKING:
    from thalweg.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class RankingForm:
    """Texts of a prompt, with {count}, {query}, {instruction}, {i} and {document} for the caller's values."""

    before: str
    task: str
    """{count}, {query}"""
    instruction: str
    """{instruction}, if there is one."""
    document: str
    """{i}, {document}"""
    query: str
    """{query}"""
    after: str
    marks: tuple[str, str]
    """The tokens after the query and after a document."""


FORMS: Mapping[str, RankingForm] = MappingProxyType({
    "jina-reranker-v3": RankingForm(
        before="<|im_start|>system\nYou are a search relevance expert who can determine a ranking of the passages based on how "
        "relevant they are to the query. If the query is a question, how relevant a passage is depends on how well it answers "
        "the question. If not, try to analyze the intent of the query and assess how well each passage satisfies the intent. "
        "If an instruction is provided, you should follow the instruction when determining the ranking."
        "<|im_end|>\n<|im_start|>user\n",
        task="I will provide you with {count} passages, each indicated by a numerical identifier. Rank the passages based on "
        "their relevance to query: {query}\n",
        instruction="<instruct>\n{instruction}\n</instruct>\n",
        document='<passage id="{i}">\n{document}<|embed_token|>\n</passage>\n',
        query="<query>\n{query}<|rerank_token|>\n</query>",
        after="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", marks=("<|rerank_token|>", "<|embed_token|>"),
    ),
})  # fmt: skip
"""`Pooling.form` of models.tail -> form."""


def write_ranking(
    tokenizer: Tokenizer, form: RankingForm, query: str, documents: Sequence[str], instruction: str | None
) -> list[int]:
    """The tokens of a query with its documents. Special tokens in the caller's texts are encoded as plain text."""
    whole, data = "", list[tuple[int, int]]()

    def add(text: str, **values: str) -> None:
        """Append a text with these values, each once at most."""
        nonlocal whole
        for name, value in values.items():
            before, _, text = text.partition(f"{{{name}}}")
            whole += before
            if name in ("query", "instruction", "document"):
                data.append((len(whole), len(whole) + len(value)))
            whole += value
        whole += text

    add(form.before)
    add(form.task, count=str(len(documents)), query=query)
    if instruction:
        add(form.instruction, instruction=instruction)
    for i, document in enumerate(documents):
        add(form.document, i=str(i), document=document)
    add(form.query, query=query)
    add(form.after)
    return tokenizer.encode_with_data(whole, data, False)


def find_marks(tokenizer: Tokenizer, form: RankingForm, ids: Sequence[int]) -> tuple[int, list[int]]:
    """(the position of the query's token, those of the documents'). RequestError where the tokenizer lacks a token."""
    query, document = (tokenizer.id_of(mark) for mark in form.marks)
    if query is None or document is None:
        raise RequestError(f"model: its tokenizer lacks {' or '.join(form.marks)}", "model")
    return ids.index(query), [i for i, token in enumerate(ids) if token == document]
