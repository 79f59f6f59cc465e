"""Plain data passed between the client, the validator and the engine for structured output."""

from __future__ import annotations

from typing import Literal

import msgspec

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
Kind = Literal["json", "regex", "choice", "grammar", "json_object", "structural_tag"]


class GrammarRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A client's grammar as text. json: a schema. choice: a JSON list of strings. structural_tag: a JSON object."""

    kind: Kind
    text: str
    compact: bool = False
    """No whitespace in JSON."""
    closed: bool = False
    """Objects have only the properties named in their schema."""
    whitespace: str | None = None
    """A regex of the whitespace allowed between JSON tokens. None: the default."""
    inside: bool = False
    """The schema's text is embedded in other text, where `JsonGuard` does not watch it (`thalweg.grammar.schema.ordered`)."""
    inner: GrammarRequest | None = None
    """The grammar that `@inner` refers to."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on the tokens of reasoning (`thalweg.grammar.budget`)."""

    open: tuple[int, ...]
    close: tuple[int, ...]
    forced: tuple[int, ...]
    """Token ids: `open` begins reasoning, `close` ends it, and `forced` follows at the limit."""
    most: int
    begun: int = -1
    """Tokens of reasoning at the end of the prompt. -1: the prompt does not end in reasoning."""


class GrammarSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A validated grammar in llguidance's form, a limit on reasoning, or both."""

    text: str
    """"": no grammar."""
    budget: Budget | None = None
    json: bool = False
    """The constrained part is exactly one JSON value: `thalweg.grammar.guard` watches it."""
    few_keys: bool = False
    """An object may run out of possible keys: `thalweg.grammar.keys` looks ahead."""
    free_until: tuple[int, ...] = ()
    """Token ids. Text is free up to and including the first such token. Empty: the grammar begins at once."""


class GrammarVocabulary(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The data of a tokenizer that grammars need."""

    tokens: list[bytes]
    """Token id -> the bytes it adds to the text, for every row of the model's output. b"": none."""
    special: list[int]
    """Ids of special tokens, which grammars refer to by name (`<[ID]>`, `<|name|>`)."""
    eos: list[int]
    """Ids that end a text, at least one."""


class GrammarError(ValueError):
    """A rejected grammar, with the reason. `pointer`: the place in a schema (RFC 6901, as a URI fragment), "" if none."""

    def __init__(self, why: str, pointer: str = "") -> None:
        self.why, self.pointer = why, pointer
        super().__init__(f"{pointer}: {why}" if pointer else why)


class TokenRejectedError(GrammarError):
    """A token outside the grammar was accepted. No request can cause this: it is a fault of the engine."""
