"""The interface of a media kind: items in requests, their readers, their placeholders in prompts, and encoder batches.

A kind has two sides. The process of the API opens a `MediaReader` for a model and makes inputs of items. The engine's process
builds batches for the encoder from these inputs. Neither side imports a tensor framework.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from thalweg.checkpoint.config import Config
from thalweg.engine.messages import Input
from thalweg.errors import RequestError
from thalweg.hal.step import StepBatch

READERS = 2
"""Items of a kind that are decoded at once, each in a separate process."""
MOST_ITEMS = 16
"""Of one kind in a prompt, unless --limit-mm-per-prompt says otherwise."""


@dataclass(frozen=True, slots=True)
class PartType:
    """A type of the content parts of messages."""

    field: str
    """The field that holds the item."""
    form: Literal["url", "detailed url", "file", "object"]
    """Its shape. url: a URL, or {"url": ...}. detailed url: the same, where "detail" may say how closely to look. file:
    {"data": base64, "format": ...}. object: a Python object, or the URL of one, which HTTP requests cannot hold."""


@dataclass(frozen=True, slots=True)
class MediaSource:
    """An item that has not been read yet."""

    kind: str
    at: str
    """Its place in the request, for errors."""
    url: str = ""
    data: bytes = b""
    name: str = ""
    """The client's name for it. A cached item may have only this."""
    samples: np.ndarray | None = None
    """Of a recording that the caller decoded."""
    rate: int = 0
    """Samples per second of these. 0: as the model reads them."""
    decoding: Mapping[str, Any] = field(default_factory=dict)
    """The request's part of `media_io_kwargs` for this kind, checked. It replaces settings of the operator."""


@dataclass(frozen=True, slots=True)
class MediaItem:
    """An item as the kind's reader made it."""

    kind: str
    value: Any


@dataclass(frozen=True, slots=True)
class MediaSettings:
    """The operator's media options. limits: items of a prompt by kind. kept_bytes: size of the cache of processed items.
    decoding: `media_io_kwargs` by kind. uncut: the tokens of an item are computed in one step."""

    limits: Mapping[str, int] = field(default_factory=dict)
    kept_bytes: int = 0
    decoding: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    uncut: bool = False


class MediaProcessor(Protocol):
    """The settings of a kind for one model. Only the kind's own methods know further fields."""

    @property
    def token(self) -> int:
        """The id that stands for one vector."""

    @property
    def marker(self) -> str:
        """The placeholder in templates. "": the token's own text."""


class MediaReader(ABC):
    """Reads the items of one kind for one model. Thread-safe. Its processes start when first needed and end with it."""

    number: str = ""
    """Text before `text`, with {0} for the item's number in its prompt, from 0, or {1} for the same from 1."""
    prefix: int = 0
    """All tokens of a prompt with an item attend to each other, and it has at most so many. 0: they do not."""
    bare: bool = False
    """The tokenizer adds no special tokens to a program's prompt with an item."""
    first_id: int | None = None
    """The first id of each prompt with an item, which the tokenizer does not have. None: it has all ids of prompts."""
    reads_text: bool = False
    """The encoder of an item reads the text of its prompt (`arrange`)."""
    source: bool = False
    """An item is the source of cross-attention: an input without positions. A prompt has at most one."""
    single: bool = False
    """A prompt has one item of this kind."""
    numbered: str = ""
    """Another placeholder in programs' prompts, with {} for the item's number, from 1. "": there is none."""
    start: Sequence[int] = ()
    """An item has no placeholders: its vectors are added to the tokens from the first, those of the answer included. The prompt
    begins with these ids, and the sequence ends with the item's last vector. (): it has placeholders."""

    @abstractmethod
    def read(self, source: MediaSource, data: bytes) -> Any:
        """An item of these bytes. Empty bytes: the source has something else. RequestError names the place in the request."""

    @abstractmethod
    def count(self, value: Any) -> int:
        """Placeholders of an item: one for each vector."""

    @abstractmethod
    def write_text(self, value: Any, token_of: Callable[[int], str]) -> str:
        """An item's text in the prompt: its placeholders, and the tokens around them. token_of: text of a token."""

    def join(self, text: str, adjacent: bool, following: str) -> str:
        """An item's text, as its neighbours in the prompt require. adjacent: an item of its kind ends where it begins.
        following: the prompt behind its marker. Default: unchanged."""
        return text

    @abstractmethod
    def make_inputs(self, value: Any, positions: np.ndarray) -> list[Input]:
        """An item as the engine gets it, one input or several. positions: i32[count] of its placeholders."""

    def arrange(self, item: Input, ids: Sequence[int], text: str) -> Input:
        """An input with facts that depend on the prompt around it. ids: of the prompt. text: of the prompt, without its
        placeholders. ValueError, with a message for the client. Default: unchanged."""
        return item

    def complete(self, prompt: str) -> str:
        """A program's prompt with items as the model was trained with it. ValueError, with a message for the client. Default:
        unchanged."""
        return prompt

    def forget(self) -> None:
        """Clear the cache: items are read again from now on. Default: no cache."""
        return

    def close(self) -> None:
        """End the idle processes. Default: there are none."""
        return


class MediaKind(ABC):
    """A row of `thalweg.media_kinds`."""

    name: ClassVar[str]
    plural: ClassVar[str]
    """Plural word in error messages."""
    unsupported: ClassVar[str]
    """Error message of requests to a model without this kind, but with other media."""
    part_types: ClassVar[Mapping[str, PartType]]
    encoder: ClassVar[str]
    """The encoder that makes its vectors: "vision" or "audio", as `ModelSpec` calls them."""
    named: ClassVar[bool] = False
    """May `multi_modal_uuids` name its items?"""
    settable: ClassVar[bool] = False
    """Are `mm_processor_kwargs` settings of its processor?"""
    per_request: ClassVar[bool] = False
    """May a request have `media_io_kwargs` for it? Its reader then reads `MediaSource.decoding`."""

    @abstractmethod
    def load_processor(self, config: Config, path: Path) -> Any | None:
        """The `MediaProcessor` of the model in this directory. None: the model does not support this kind. CheckpointError or
        UnsupportedModelError."""

    @abstractmethod
    def open_reader(self, processor: Any, settings: MediaSettings) -> MediaReader: ...

    @abstractmethod
    def read_part(self, part: Mapping[str, Any], at: str) -> MediaSource:
        """The item of a content part with one of `part_types`. RequestError for a part without its item."""

    @abstractmethod
    def read_object(self, value: Any, at: str, name: str = "") -> MediaSource:
        """An item as programs hold it. RequestError for other objects."""

    def split_items(self, value: Any) -> Sequence[Any]:
        """The items in "multi_modal_data" under the kind's name: one or a list."""
        return value if isinstance(value, list | tuple) else [value]

    def check_decoding(self, given: Mapping[str, Any]) -> list[str] | None:
        """Errors in its part of `media_io_kwargs`. None: the kind has no settings there."""
        return None

    def is_bidirectional(self, processor: Any) -> bool:
        """Do the vectors of an item attend to each other in both directions?"""
        return False

    @abstractmethod
    def build_batches(self, processor: Any, spec: Any, items: Sequence[Input]) -> tuple[StepBatch, ...]:
        """The encoder's input for items that are encoded together: one batch for each kind of its layers, the step's batch
        first. spec: the encoder as the model declares it."""

    def count_rows(self, processor: Any, item: Input) -> int | None:
        """Rows of an item in a batch. Items are encoded together up to a limit of rows. None: it is encoded separately."""
        return None


def read_url(part: Mapping[str, Any], field_name: str, at: str, example: str) -> str:
    """The URL of a part: a string, or {"url": string}. RequestError."""
    url = part.get(field_name)
    url = url.get("url") if isinstance(url, Mapping) else url
    if not isinstance(url, str):
        raise RequestError(f"{at}.{field_name}: must be a URL, such as {example}", at)
    return url
