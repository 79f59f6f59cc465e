"""Compiles grammars for a vocabulary with llguidance. No other file imports it.

The library's limits are lowered: a request must not use hundreds of megabytes, nor a step tens of milliseconds.
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
"""The library's matcher: a compiled grammar and its state."""
KEPT = 64
"""Compiled grammars in the cache."""
KEPT_BYTES = 4 << 20
"""Total bytes of the texts of cached grammars."""
LEXER_STATES = 25_000
"""Lexer states of one matcher, 1 to 2 kB each."""
STEP_FUEL = 100_000
"""Lexer work for one mask, about 14,000 a millisecond."""
STEP_ITEMS = 25_000
"""Parser items for one mask, about 20,000 a millisecond. It limits the items of one row too."""
GRAMMAR_SIZE = 100_000
"""Symbols of a grammar."""
TRIED = 8
"""Tokens of a sample text that validation feeds to a grammar. Too complex grammars mostly fail in the first few."""
_STRIDE = 7919
"""Step, in bytes of the mask, between the positions where the search for a token begins."""
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
"""(the library's error at a limit, the message for clients)."""
_NO_END = "NoExtensionBias"
"""The library's error if no token is allowed and the text cannot end."""
NEVER_ENDS = (
    "no text is a sentence of this grammar: a rule never ends, as in `root ::= root`, or nothing satisfies a part of it"
)
_OWN = re.compile(r"GrammarError\(\"(.*?)\"\)")


class _LLGuidanceTokenizer:
    """A vocabulary with llguidance's tokenizer interface. Where a grammar allows one text only, the mask has the first token of
    its spelling, and no other."""

    def __init__(self, v: GrammarVocabulary) -> None:
        self.tokens, self.special_token_ids = v.tokens, v.special
        self.eos_token_id, self.bos_token_id = v.eos[0], None
        self._spell = Speller(v)

    def __call__(self, text: bytes) -> list[int]:
        return self._spell(text)


class Compiler:
    """Compiles grammars, with a cache of the latest. Thread-safe."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        """Costs a third of a second for 150,000 tokens."""
        self.tokens, self._eos = vocabulary.tokens, vocabulary.eos
        # No slices: they speed up masks of a few grammars, and double the start-up time.
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
        """Protects the cache. Not held during compilation."""

    def compile(self, text: str) -> LLMatcher:
        """A new matcher at the start of a text, copied from the cached one. GrammarError."""
        found = self.lookup(text)
        if found is None:
            result = LLMatcher(self._tokenizer, text, log_level=0, limits=self._limits)
            if result.is_error():
                raise GrammarError(words_of(result.get_error()))
            self._keep(text, result)
            found = result.deep_copy()
        return found

    def lookup(self, text: str) -> LLMatcher | None:
        """As `compile`, from the cache. None: not cached."""
        with self._lock:
            found = self._kept.get(text)
            if found is not None:
                self._kept.move_to_end(text)
            return None if found is None else found.deep_copy()

    def keeps(self, text: str) -> bool:
        """Is the grammar in the cache?"""
        with self._lock:
            return text in self._kept

    def try_first(self, text: str) -> None:
        """Compile the grammar, compute its first mask, and feed it `TRIED` tokens of a sample text. GrammarError."""
        result = self.compile(text)
        for place in range(TRIED + 1):
            mask = bytearray(result.compute_bitmask())
            if result.is_error():
                raise GrammarError(words_of(result.get_error()))
            if result.is_stopped():
                break
            token = self._one_of(mask, place * _STRIDE)
            if token is None and result.is_accepting():
                break
            if token is None or not result.consume_token(token):
                raise GrammarError(words_of(result.get_error()))
        if place == 0 and not result.is_accepting():
            raise GrammarError("no text at all is a sentence of this grammar")

    def _one_of(self, mask: bytearray, start: int) -> int | None:
        """A token of the mask other than end tokens, the first from byte `start` on, with wrap-around. None: there is none."""
        for token in self._eos:
            mask[token // 8] &= ~(1 << token % 8)
        start %= len(mask)
        turned = mask[start:] + mask[:start]
        skipped = len(turned) - len(turned.lstrip(b"\0"))
        if skipped == len(turned):
            return None
        at = (start + skipped) % len(mask)
        return 8 * at + (mask[at] & -mask[at]).bit_length() - 1

    def _keep(self, text: str, result: LLMatcher) -> None:
        with self._lock:
            self._bytes += 0 if text in self._kept else len(text)
            self._kept[text] = result
            while len(self._kept) > 1 and (len(self._kept) > KEPT or self._bytes > KEPT_BYTES):
                old, _ = self._kept.popitem(last=False)
                self._bytes -= len(old)


def lark(text: str, **others: str) -> str:
    """A Lark grammar in llguidance's JSON form. others: Lark grammars that it references as @name."""
    return json.dumps({"grammars": [{"name": n, "lark_grammar": t} for n, t in (("main", text), *others.items())]})


def nest(text: str, inner: str) -> str:
    """A Lark grammar that references another, in the library's JSON form, as @inner."""
    first, *others = json.loads(inner)["grammars"]
    return json.dumps({"grammars": [{"name": "main", "lark_grammar": text}, {**first, "name": "inner"}, *others]})


def from_json(schema: object, options: dict[str, object]) -> str:
    """The grammar of a JSON schema prepared by `thalweg.grammar.schema`. options: as in a schema's x-guidance."""
    text = json.dumps(schema, ensure_ascii=False)
    return LLMatcher.grammar_from_json_schema(text, overrides=options)  # type: ignore[arg-type]


def regex(text: str) -> str:
    return LLMatcher.grammar_from_regex(text)


def regex_lark(text: str) -> str:
    """A regex as Lark."""
    return f"start: /{regex_to_lark(text)}/"


def from_gbnf(text: str) -> str:
    """llama.cpp's EBNF (GBNF) as Lark. GrammarError."""
    try:
        return str(gbnf_to_lark(text))
    except RecursionError:
        raise
    except Exception as e:  # the library's own errors are of several kinds
        raise GrammarError(f"EBNF: {e}") from None


def exceeds(error: str) -> bool:
    """Is it the library's error for one of the limits above?"""
    return any(known.search(error) for known, _ in _LIMITS)


def words_of(error: str) -> str:
    """A short message from the library's error, without its source excerpts: the first line and the "error:" line. An error
    that this package raised within the library keeps its message."""
    if own := _OWN.search(error):
        return own[1]
    for known, words in _LIMITS:
        if found := known.search(error):
            return words.format(*found.groups())
    if _NO_END in error:
        return NEVER_ENDS
    lines = [line.strip() for line in error.strip().splitlines() if line.strip(" ^|")]
    errors = [line for line in lines if line.startswith("error:")]
    return " ".join(line[:300] for line in [*lines[:1], *errors[:1]]) or "cannot be compiled"
