"""Compiles grammars in the engine. Each was validated before, so its cost is bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from thalweg.grammar.budget import BudgetMatcher, TokenMatcher
from thalweg.grammar.source import GrammarError, GrammarSource, GrammarVocabulary

if TYPE_CHECKING:
    from thalweg.grammar.compiled import Compiler
    from thalweg.grammar.guard import JsonGuard
    from thalweg.grammar.matcher import Matcher

STACK = 64 << 20
"""Stack bytes of the compiling thread. The validator's has the usual 8 MiB: grammars that fit there fit here."""


class Grammars:
    """Creates matchers. Thread-safe. A separate thread with a deep stack compiles them: only the caller waits."""

    def __init__(self, vocabulary: Callable[[], GrammarVocabulary]) -> None:
        """vocabulary: called when the first grammar is compiled."""
        self._vocabulary = vocabulary
        self._one = threading.Lock()
        """Held during compilation."""
        self._made: tuple[Compiler, JsonGuard] | None = None

    def ready(self, source: GrammarSource) -> bool:
        """Is the grammar compiled and cached?"""
        return not source.text or (self._made is not None and self._made[0].keeps(source.text))

    def refuse(self, source: GrammarSource) -> str | None:
        """Compile the grammar. Returns the reason if it fails, else None."""
        try:
            self.follower(source)
        except GrammarError as e:
            return f"structured_outputs: {e}"
        return None

    def warm(self) -> None:
        """Read the vocabulary now. The library holds the GIL meanwhile, for a quarter of a second with 150,000 tokens. Every
        thread of the process stops."""
        with self._one:
            self._compiler()

    def follower(self, source: GrammarSource) -> TokenMatcher:
        """The matcher of a sequence, with its reasoning budget, at the start of the text. GrammarError."""
        inner = self.matcher(source) if source.text else None
        if source.budget is not None:
            return BudgetMatcher(source.budget, inner)
        assert inner is not None, "a source says something"
        return inner

    def matcher(self, source: GrammarSource) -> Matcher:
        """The grammar's matcher at the start of a text. GrammarError."""
        from thalweg.grammar.matcher import Matcher

        result = self._made
        inner = None if result is None else result[0].lookup(source.text)
        if result is None or inner is None:
            with self._one:
                _deep(lambda: self._compile(source.text))
            result = self._made
            assert result is not None
            inner = result[0].compile(source.text)
        return Matcher(inner, source, result[1])

    def _compile(self, text: str) -> None:
        self._compiler().compile(text)

    def _compiler(self) -> Compiler:
        from thalweg.grammar.compiled import Compiler  # imports the library, which few engines need
        from thalweg.grammar.guard import JsonGuard

        if self._made is None:
            compiler = Compiler(self._vocabulary())
            self._made = compiler, JsonGuard(compiler.tokens)
        return self._made[0]


def _deep(work: Callable[[], None]) -> None:
    """Run `work` on a thread with a deep stack. Its exceptions propagate."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as e:
            failed.append(e)

    before = threading.stack_size(STACK)
    try:
        thread = threading.Thread(target=run, name="grammar", daemon=True)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    if failed:
        raise failed[0]
