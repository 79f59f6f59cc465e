"""Structural tags: text with constrained parts, in the notation of vLLM and xgrammar.

Two forms: {"structures": [{"begin", "schema", "end"}], "triggers": [...]}, and {"format": ...} made of const_string,
json_schema, regex, grammar, any_text, sequence, or, tag, triggered_tags and tags_with_separator.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from thalweg.grammar import compiled, ebnf, regexes
from thalweg.grammar.source import GrammarError, GrammarRequest

MOST_PARTS = 1000
_TEXT = r"/(.|\n)*/"


def to_grammar(tag: Any, requested: GrammarRequest) -> str:
    """The grammar of a structural tag. GrammarError names the part."""
    from thalweg.grammar.convert import json_options

    if not isinstance(tag, dict):
        raise GrammarError("must be an object")
    result = _Rules(json_options(requested))
    if "structures" in tag:
        structures = [s if isinstance(s, dict) else {} for s in _list(tag["structures"], "#/structures")]
        tags = [
            {"begin": s.get("begin"), "content": {"type": "json_schema", "json_schema": s.get("schema")}, "end": s.get("end")}
            for s in structures
        ]
        body = {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}
        start = result.part(body, "#")
    elif "format" in tag:
        start = result.part(tag["format"], "#/format")
    else:
        raise GrammarError('needs "format", or "structures" and "triggers"')
    return compiled.lark("\n".join(["%llguidance {}", f"start: {start}", *result.rules]), **result.others)


class _Rules:
    """Collects Lark rules. A part is text for the body of another rule."""

    def __init__(self, options: dict[str, object]) -> None:
        self.rules: list[str] = []
        self.others: dict[str, str] = {}
        self._options = options

    def _rule(self, body: str, kind: str = "") -> str:
        if len(self.rules) >= MOST_PARTS:
            raise GrammarError(f"has more than {MOST_PARTS} parts")
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}{kind}: {body}")
        return name

    def part(self, form: Any, at: str) -> str:
        if not isinstance(form, dict):
            raise GrammarError("must be an object", at)
        match form.get("type"):
            case "const_string":
                return _literal(_text(form.get("value"), f"{at}/value"))
            case "json_schema":
                if form.get("style", "json") != "json":
                    raise GrammarError(f"{form['style']!r:.40} is not supported; supported: json", f"{at}/style")
                return self._rule(self._schema(form.get("json_schema"), f"{at}/json_schema"))
            case "regex":
                return self._other(compiled.regex_lark(regexes.simplify(_text(form.get("pattern"), f"{at}/pattern"))))
            case "grammar":
                return self._other(ebnf.to_lark(_text(form.get("grammar"), f"{at}/grammar"), self._options))
            case "any_text":
                return self._rule(_TEXT)
            case "sequence" | "or" as kind:
                parts = [
                    self.part(e, f"{at}/elements/{i}") for i, e in enumerate(_list(form.get("elements"), f"{at}/elements"))
                ]
                return self._rule((" " if kind == "sequence" else " | ").join(parts))
            case "tag":
                return self._tag(form, at)
            case "triggered_tags":
                return self._triggered_tags(form, at)
            case "tags_with_separator":
                return self._tags_with_separator(form, at)
            case other:
                raise GrammarError(f"{other!r:.60} is not supported", f"{at}/type")

    def _schema(self, schema: Any, at: str) -> str:
        try:
            return ebnf.inner(schema, self._options)
        except GrammarError as e:
            raise GrammarError(e.why, at + e.pointer.removeprefix("#")) from None

    def _other(self, lark: str) -> str:
        name = f"g{len(self.others)}"
        self.others[name] = lark
        return self._rule(f"@{name}")

    def _tag(self, form: dict[str, Any], at: str, skip: int = 0) -> str:
        """A tag. skip: characters of its beginning already written."""
        begin, end = _text(form.get("begin"), f"{at}/begin")[skip:], form.get("end", "")
        if isinstance(end, list):
            end = end[0] if len(end) == 1 else None
        ends = _text(end, f"{at}/end", empty=True)
        content = form.get("content")
        if isinstance(content, dict) and content.get("type") == "any_text" and ends:
            return self._rule(f"{_literal(begin)} {self._rule(f'{_TEXT} {_literal(ends)}', '[lazy]')}")
        return self._rule(" ".join(filter(None, (_literal(begin), self.part(content, f"{at}/content"), _literal(ends)))))

    def _triggered_tags(self, form: dict[str, Any], at: str) -> str:
        """Free text with tags, each after its trigger."""
        triggers = [_text(t, f"{at}/triggers/{i}") for i, t in enumerate(_list(form.get("triggers"), f"{at}/triggers"))]
        if form.get("excludes"):
            raise GrammarError("is not supported", f"{at}/excludes")
        tags = _list(form.get("tags"), f"{at}/tags")
        result = []
        for trigger in triggers:
            mine = [(i, t) for i, t in enumerate(tags) if isinstance(t, dict) and str(t.get("begin", "")).startswith(trigger)]
            if mine:
                head = self._rule(f"{_TEXT} {_literal(trigger)}", "[lazy]")
                bodies = [self._tag(t, f"{at}/tags/{i}", len(trigger)) for i, t in mine]
                result.append(self._rule(f"{head} ({' | '.join(bodies)})"))
        for i, tag in enumerate(tags):
            if not (isinstance(tag, dict) and any(str(tag.get("begin", "")).startswith(t) for t in triggers)):
                raise GrammarError("begins with none of the triggers", f"{at}/tags/{i}/begin")
        once = bool(form.get("stop_after_first"))
        times = ("" if once else "+") if form.get("at_least_one") else ("?" if once else "*")
        tail = "" if once and form.get("at_least_one") else f" {self._rule(_TEXT)}"
        return self._rule(f"({' | '.join(result)}){times}{tail}")

    def _tags_with_separator(self, form: dict[str, Any], at: str) -> str:
        tags = [
            self._tag(t, f"{at}/tags/{i}") for i, t in enumerate(_list(form.get("tags"), f"{at}/tags")) if isinstance(t, dict)
        ]
        one, between = self._rule(" | ".join(tags)), _literal(_text(form.get("separator"), f"{at}/separator", empty=True))
        many = one if form.get("stop_after_first") else f"{one} ({between} {one})*"
        return self._rule(many if form.get("at_least_one") else f"({many})?")


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _text(value: Any, at: str, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty):
        raise GrammarError("must be text" if empty else "must be text, and not empty", at)
    return value


def _list(value: Any, at: str) -> Sequence[Any]:
    if not isinstance(value, list) or not value:
        raise GrammarError("must be a list of at least one item", at)
    return value
