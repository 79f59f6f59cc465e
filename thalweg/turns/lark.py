"""Parts of a grammar in Lark, as llguidance reads it. Tokens are written <[ID]>.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from thalweg.text.marks import id_of, is_half

MEANING = frozenset('\\/.*+?()[]{}|^$"')
"""Characters with a meaning in regular expressions."""
ANY = "/(.|\\n)*/"


def literal(text: str) -> str:
    """A terminal: text in quotes, tokens by their ids."""
    out, plain, i = [], "", 0
    while i < len(text):
        if is_half(text[i]):
            out += [json.dumps(plain, ensure_ascii=False)] if plain else []
            out.append(f"<[{id_of(text[i : i + 2])}]>")
            plain, i = "", i + 2
        else:
            plain, i = plain + text[i], i + 1
    return " ".join([*out, *([json.dumps(plain, ensure_ascii=False)] if plain else [])])


def pattern(text: str) -> str:
    """A regular expression that matches just this text."""
    return "".join("\\" + c if c in MEANING else "\\n" if c == "\n" else c for c in text)


def containing(*texts: str) -> str:
    """A regular expression that matches all text with one of `texts` in it."""
    return f"/(.|\\n)*({'|'.join(map(pattern, texts))})(.|\\n)*/"


class Rules:
    """Collects the rules of one grammar."""

    def __init__(self, shown: Callable[[str], str]) -> None:
        """shown: writes the marks in a text as their tokens' text."""
        self._shown = shown
        self._rules: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._rules)

    def __getitem__(self, name: str) -> str:
        return self._rules[name.removesuffix("[lazy]")]

    def rule(self, name: str, body: str) -> str:
        """Add or replace a rule. Returns the name that other rules use."""
        self._rules[name] = body
        return name.removesuffix("[lazy]")

    def fresh(self, kind: str, body: str) -> str:
        """Add a rule under a new name. kind in upper case: a terminal."""
        return self.rule(f"{kind}_{len(self._rules)}", body)

    def source(self, start: str) -> str:
        return "\n".join([f"start: {start}", *(f"{name}: {rule}" for name, rule in self._rules.items())]) + "\n"

    def until(self, terminal: str, form: str | None = None, apart: bool = False) -> str:
        """Text without the terminal, then the terminal.

        form: a terminal expression of the text. None: any text. apart: no text of the form contains the terminal. A token that
        ends the text always matches as that token, never as text."""
        at = next((i for i, c in enumerate(terminal) if is_half(c)), None)
        if at is None:
            return self._until_text(terminal, form, apart)
        lead, rest = terminal[:at], terminal[at:]
        if form is None and not lead:
            return f"{self.fresh('text', ANY)} {literal(terminal)}"
        whole = self._join_terminal(form, lead)
        if apart:
            return f"{whole} {literal(rest)}"
        ended = self.fresh("HELD", containing(self._shown(terminal)))
        return f"{self.fresh('TEXT', f'{whole} & ~{ended}')} {literal(rest)}"

    def _until_text(self, terminal: str, form: str | None, apart: bool) -> str:
        if form is None:
            return self.fresh_lazy(f"/(.|\\n)*{pattern(terminal)}/")
        if apart:
            return self.fresh_lazy(self._join_terminal(form, terminal))
        beyond = self.fresh("HELD", f"/(.|\\n)*{pattern(terminal)}(.|\\n)+/")
        return self.fresh_lazy(self.fresh("TEXT", f"{self._join_terminal(form, terminal)} & ~{beyond}"))

    def _join_terminal(self, form: str | None, text: str) -> str:
        """A terminal: the form, then this text."""
        first = self.fresh("FORM", form or ANY)
        return self.fresh("WHOLE", f"{first} {literal(text)}") if text else first

    def fresh_lazy(self, body: str) -> str:
        """Add a lazy rule: it matches the shortest text."""
        name = f"until_{len(self._rules)}"
        return self.rule(f"{name}[lazy]", body)

    def join_members(self, members: Sequence[tuple[bool, str]], separator: str) -> str:
        """Members between separators. members: (required?, rule of the member)."""
        if not members:
            return ""
        rest, begin, last = "", "", len(members) - 1
        for j in range(last, -1, -1):
            needed, member = members[j]
            first = f"{member} {rest}"
            begin = first if needed or (not begin and j == last) else f"({first} | {begin})"
            if not needed and j == last:
                begin = f"({first})?"
            tail = f"({separator} {member}) {rest}" if needed else f"({separator} {member})? {rest}"
            rest = self.fresh("rest", tail)
        return begin
