"""What crosses between the rooms of structured output: plain data, with nothing of the library in it."""

from __future__ import annotations

from typing import Literal

import msgspec

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
Kind = Literal["json", "regex", "choice", "grammar", "json_object", "structural_tag"]


class GrammarRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a client wants, as text. json: a schema. choice: a JSON list of strings. structural_tag: a JSON object."""

    kind: Kind
    text: str
    compact: bool = False
    """No whitespace in JSON."""
    closed: bool = False
    """Objects have no properties but those their schema names."""
    whitespace: str | None = None
    """A regex of the whitespace allowed between tokens of JSON, in place of ours."""
    inside: bool = False
    """A schema of text inside other text, where nothing watches it (`thalweg.grammar.schema.ordered`)."""
    inner: GrammarRequest | None = None
    """What `@inner` stands for in a grammar."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A bound on the tokens of reasoning (`thalweg.grammar.budget`)."""

    open: tuple[int, ...]
    close: tuple[int, ...]
    forced: tuple[int, ...]
    """Token ids: what begins reasoning, what ends it, and what comes when no token is left."""
    most: int
    begun: int = -1
    """Tokens of reasoning that the prompt ends in. -1: it does not reason."""


class GrammarSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A grammar that was judged, as llguidance reads it, a bound on reasoning, or both."""

    text: str
    """"": there is no grammar."""
    budget: Budget | None = None
    json: bool = False
    """The constrained part is one JSON value, and no more: `thalweg.grammar.guard` watches it."""
    few_keys: bool = False
    """An object in it may have used every key that it can have: `thalweg.grammar.keys` looks ahead."""
    free_until: tuple[int, ...] = ()
    """Token ids. Text is free up to and with the first of them. Empty: the grammar begins at once."""


class GrammarVocabulary(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a grammar must know of a tokenizer."""

    tokens: list[bytes]
    """By id, as many as the model has rows: the bytes each adds to the text. b"": none."""
    special: list[int]
    """Ids that are no text: grammars name them (`<[ID]>`, `<|name|>`)."""
    eos: list[int]
    """Ids that end a text, at least one."""


class GrammarError(ValueError):
    """A grammar that is not served, and why. `pointer`: where in a schema (RFC 6901, as a URI fragment), "" if nowhere."""

    def __init__(self, why: str, pointer: str = "") -> None:
        self.why, self.pointer = why, pointer
        super().__init__(f"{pointer}: {why}" if pointer else why)


class TokenRejectedError(GrammarError):
    """A token that the grammar does not allow was given to it. No client asks for that: the fault is the engine's."""
