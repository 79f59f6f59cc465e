"""How the project writes, as counts within bounds. `python ci/prose.py` names the worst."""

from __future__ import annotations

import ast
from pathlib import Path

import prose
import pytest

ROOT = Path(__file__).parents[2]
BOUNDS = {
    "docs": prose.Figures(sentences=500, mean=12.5, long=3.0, semicolons=2.0),
    "code": prose.Figures(sentences=2000, mean=14.0, long=5.0, semicolons=6.0),
    "errors": prose.Figures(sentences=500, mean=13.0, long=3.0, semicolons=30.0),
}
"""Upper bounds: what good prose of the field has, which leaves room for a page that is new. `sentences` is the fewest that
must be found."""
ROOMS_TO_COME: tuple[str, ...] = ()
"""Rooms that still hold replaced words."""


@pytest.fixture(scope="module")
def texts() -> dict[str, list[prose.Sentence]]:
    return {kind: list(sentences(ROOT)) for kind, sentences in prose.KINDS.items()}


@pytest.mark.parametrize("kind", BOUNDS)
@pytest.mark.slow
def test_sentences_stay_as_short_as_they_are(kind: str, texts: dict[str, list[prose.Sentence]]) -> None:
    here, bound = prose.Figures.of(texts[kind]), BOUNDS[kind]
    assert here.sentences >= bound.sentences
    assert here.mean <= bound.mean, here
    assert here.long <= bound.long, here
    assert here.semicolons <= bound.semicolons, here


def test_sentences_are_found_in_paragraphs_lists_and_tables_and_not_in_code() -> None:
    page = (
        "# A heading of four words\n\nOne two three\nfour. `Five` [six](to/a.md) seven eight; nine.\n\n"
        "- ten eleven twelve thirteen\n\n```sh\nthis is no sentence at all\n```\n\n| a cell | of six words it is made |\n"
    )
    found = list(prose.markdown("a.md", page))
    assert [s.words for s in found] == [4, 5, 4, 6]
    assert [s.line for s in found] == [3, 3, 6, 12]
    assert prose.Figures.of(found) == prose.Figures(4, 19 / 4, 0, 25)


def test_docstrings_and_comments_count_and_strings_do_not() -> None:
    text = (
        '"""What the module is for.\n\n    an example that is code\n"""\n'
        "x = 'a string that is code'  # noqa: E501\n# One comment on two\n# lines, e.g. this one.\n"
    )
    found = [*prose.docstrings("a.py", ast.parse(text)), *prose.comments("a.py", text)]
    assert [s.words for s in found] == [5, 8]


def test_a_word_that_the_glossary_replaces_is_found() -> None:
    (found,) = prose.replaced(prose.split("a.md", 7, "The row's likeliest token comes first."))
    assert str(found) == "a.md:7: 'likeliest': say argmax"


def test_strings_of_raise_statements_count_as_errors() -> None:
    text = 'def f(n):\n    raise ValueError(f"size: {n} is too large for this device; " "lower it")\n'
    (found,) = prose.messages("a.py", ast.parse(text))
    assert (found.line, found.words) == (2, 10)


def test_constructs_are_counted_per_1000_words_and_questions_may_ask() -> None:
    sentences = "What is it for? It takes what it needs. So the engine stands in for others alone."
    rates = prose.rates(prose.split("docs/a.md", 1, sentences))
    assert {name: round(rate * 16 / 1000) for name, rate in rates.items() if rate} == {
        "what-clause": 1, "takes": 1, "So, first": 1, "told": 1, "alone": 1
    }  # fmt: skip


@pytest.mark.parametrize("kind", prose.KINDS)
@pytest.mark.slow
def test_rates_stay_below_their_limits(kind: str, texts: dict[str, list[prose.Sentence]]) -> None:
    assert list(prose.excesses(kind, texts[kind])) == []


def test_a_term_counts_in_documentation_only() -> None:
    assert [*prose.replaced(prose.split("thalweg/a.py", 1, "Nobody reads this line of code."))] == []
    (found,) = prose.replaced(prose.split("docs/a.md", 1, "Nobody reads this line of text."))
    assert "no client" in str(found)


@pytest.mark.slow
def test_no_word_is_left_that_the_glossary_replaces(texts: dict[str, list[prose.Sentence]]) -> None:
    found = prose.replaced(texts["docs"] + texts["code"])
    assert [str(f) for f in found if not f.path.startswith(ROOMS_TO_COME)] == []
