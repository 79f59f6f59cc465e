"""llguidance: grammars compiled for a vocabulary. The only file that imports it.

Its own limits are lowered: a request may not take hundreds of megabytes, nor a step tens of milliseconds.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, regex_to_lark
from llguidance.gbnf_to_lark import gbnf_to_lark

from thalweg.grammar.source import GrammarError, GrammarVocabulary
from thalweg.grammar.spelling import Speller

Compiled = LLMatcher
"""A grammar followed by tokens, as the library has it."""
KEPT = 64
"""Compiled grammars kept."""
KEPT_BYTES = 4 << 20
"""Bytes of the texts of those, together."""
LEXER_STATES = 25_000
"""Of one matcher, 1 to 2 kB each."""
STEP_FUEL = 100_000
"""Lexer work for one mask, about 14,000 a millisecond."""
STEP_ITEMS = 25_000
"""Parser work for one mask, about 20,000 a millisecond. No place of a text may have more ways to go on either."""
GRAMMAR_SIZE = 100_000
"""Symbols of a grammar."""
TRIED = 8
"""Tokens of a text that a grammar is followed by when it is judged. What is too complex mostly shows in the first few."""
_STRIDE = 7919
"""Bytes of a mask, from one place to the next, where a token is looked for."""
_LIMITS = (
    (re.compile(r"Current row has (\d+) items"), f"has {{}} ways to go on at one place; the limit is {STEP_ITEMS}"),
    (re.compile(r"Too many items"), f"has too many ways to go on at one place; the limit is {STEP_ITEMS}"),
    (
        re.compile(r"too many expressions|fuel exhausted"),
        f"is too complex: one token needs more than {STEP_FUEL} steps of its regular expressions; use fewer nested repeats",
    ),
    (
        re.compile(r"too many states"),
        f"is too complex: its regular expressions need more than {LEXER_STATES} states; use shorter ones",
    ),
)
"""What the library says where a limit above is reached, and what a client reads."""
_NO_END = "NoExtensionBias"
"""What the library says where no token may come next and the text may not end."""
NEVER_ENDS = (
    "no text is a sentence of this grammar: a rule never ends, as in `root ::= root`, or nothing satisfies a part of it"
)
_OWN = re.compile(r"GrammarError\(\"(.*?)\"\)")


class _LLGuidanceTokenizer:
    """A vocabulary as llguidance wants it. Where a grammar leaves one text alone, a mask holds the first token of its
    spelling, and no other."""

    def __init__(self, v: GrammarVocabulary) -> None:
        self.tokens, self.special_token_ids = v.tokens, v.special
        self.eos_token_id, self.bos_token_id = v.eos[0], None
        self._spell = Speller(v)

    def __call__(self, text: bytes) -> list[int]:
        return self._spell(text)


class Compiler:
    """Compiles grammars, and keeps the latest. Thread-safe."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        """Takes a third of a second for 150,000 tokens."""
        self.tokens, self._eos = vocabulary.tokens, vocabulary.eos
        # No slices: they make masks of a few grammars faster, and twice as slow to start.
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_LLGuidanceTokenizer(vocabulary)), eos_token=list(vocabulary.eos), slices=[]
        )
        self._limits = LLParserLimits(
            max_items_in_row=STEP_ITEMS, step_lexer_fuel=STEP_FUEL, step_max_items=STEP_ITEMS,
            max_lexer_states=LEXER_STATES, max_grammar_size=GRAMMAR_SIZE,
        )  # fmt: skip
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        """Of what is kept. Not held to compile."""

    def compile(self, text: str) -> LLMatcher:
        """A matcher at its start, the caller's own. GrammarError."""
        found = self.lookup(text)
        if found is None:
            made = LLMatcher(self._tokenizer, text, log_level=0, limits=self._limits)
            if made.is_error():
                raise GrammarError(words_of(made.get_error()))
            self._keep(text, made)
            found = made.deep_copy()
        return found

    def lookup(self, text: str) -> LLMatcher | None:
        """As `compile`, of what is kept."""
        with self._lock:
            found = self._kept.get(text)
            if found is not None:
                self._kept.move_to_end(text)
            return None if found is None else found.deep_copy()

    def keeps(self, text: str) -> bool:
        """Is it compiled and kept?"""
        with self._lock:
            return text in self._kept

    def try_first(self, text: str) -> None:
        """Compile it, make its first mask, and follow one of its texts for `TRIED` tokens. GrammarError."""
        made = self.compile(text)
        for place in range(TRIED + 1):
            mask = bytearray(made.compute_bitmask())
            if made.is_error():
                raise GrammarError(words_of(made.get_error()))
            if made.is_stopped():
                break
            token = self._one_of(mask, place * _STRIDE)
            if token is None and made.is_accepting():
                break
            if token is None or not made.consume_token(token):
                raise GrammarError(words_of(made.get_error()))
        if place == 0 and not made.is_accepting():
            raise GrammarError("no text at all is a sentence of this grammar")

    def _one_of(self, mask: bytearray, start: int) -> int | None:
        """A token that a mask allows and that ends no text, from byte `start` on, in a circle. None: there is no other."""
        for token in self._eos:
            mask[token // 8] &= ~(1 << token % 8)
        start %= len(mask)
        turned = mask[start:] + mask[:start]
        skipped = len(turned) - len(turned.lstrip(b"\0"))
        if skipped == len(turned):
            return None
        at = (start + skipped) % len(mask)
        return 8 * at + (mask[at] & -mask[at]).bit_length() - 1

    def _keep(self, text: str, made: LLMatcher) -> None:
        with self._lock:
            self._bytes += 0 if text in self._kept else len(text)
            self._kept[text] = made
            while len(self._kept) > 1 and (len(self._kept) > KEPT or self._bytes > KEPT_BYTES):
                old, _ = self._kept.popitem(last=False)
                self._bytes -= len(old)


def lark(text: str, **others: str) -> str:
    """A grammar in llguidance's form. others: grammars in Lark that it names as @name."""
    return json.dumps({"grammars": [{"name": n, "lark_grammar": t} for n, t in (("main", text), *others.items())]})


def nest(text: str, inner: str) -> str:
    """A grammar in Lark that names another, in the library's form, as @inner."""
    first, *others = json.loads(inner)["grammars"]
    return json.dumps({"grammars": [{"name": "main", "lark_grammar": text}, {**first, "name": "inner"}, *others]})


def from_json(schema: object, options: dict[str, object]) -> str:
    """The same for a JSON schema that `thalweg.grammar.schema` has prepared. options: as in a schema's x-guidance."""
    text = json.dumps(schema, ensure_ascii=False)
    return LLMatcher.grammar_from_json_schema(text, overrides=options)  # type: ignore[arg-type]


def regex(text: str) -> str:
    return LLMatcher.grammar_from_regex(text)


def regex_lark(text: str) -> str:
    """A regex as Lark."""
    return f"start: /{regex_to_lark(text)}/"


def from_gbnf(text: str) -> str:
    """EBNF as llama.cpp writes it, as Lark. GrammarError."""
    try:
        return str(gbnf_to_lark(text))
    except RecursionError:
        raise
    except Exception as e:  # the library's own errors are of several kinds
        raise GrammarError(f"EBNF: {e}") from None


def exceeds(error: str) -> bool:
    """Does the library say that one of the limits above is reached?"""
    return any(known.search(error) for known, _ in _LIMITS)


def words_of(error: str) -> str:
    """What the library says went wrong, without pictures of where: its first line, and the one that says what it is. Or what
    this package said when the library asked for a spelling."""
    if own := _OWN.search(error):
        return own[1]
    for known, words in _LIMITS:
        if found := known.search(error):
            return words.format(*found.groups())
    if _NO_END in error:
        return NEVER_ENDS
    lines = [line.strip() for line in error.strip().splitlines() if line.strip(" ^|")]
    said = [line for line in lines if line.startswith("error:")]
    return " ".join(line[:300] for line in [*lines[:1], *said[:1]]) or "cannot be compiled"
