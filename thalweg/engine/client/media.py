"""Media of requests: found in messages, read through the connector, and placed among a prompt's tokens.

Each kind of media has its own row (`thalweg.media.kinds`)."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, groupby
from typing import Any

import msgspec
import numpy as np

from thalweg.engine.messages import Input
from thalweg.errors import RequestError
from thalweg.host.turns import FairSemaphore
from thalweg.media.fetches import Fetches
from thalweg.media.gate import MediaConnector
from thalweg.media.kinds import load_kinds, map_part_types, name_kinds
from thalweg.media.kinds.base import (
    MOST_ITEMS,
    READERS,
    MediaItem,
    MediaKind,
    MediaProcessor,
    MediaReader,
    MediaSettings,
    MediaSource,
)
from thalweg.template.specials import Span
from thalweg.text.tokenizer import Tokenizer

NAME, UUIDS = "multi_modal_data", "multi_modal_uuids"
MEDIA = "media"
"""Key of a prompt for media already read."""
MOST_BYTES = 160 << 20
"""Bytes of pixels and spectra that a request may send to an engine process, all its choices together."""


@dataclass(frozen=True, slots=True)
class ModelMedia:
    """A kind of media, as the model expects it."""

    kind: MediaKind
    reader: MediaReader
    token: int
    """The id of the placeholder of one vector."""
    shown: str
    """Its text."""
    marker: str
    """The text that templates write for an item."""
    limit: int
    """Items of one prompt."""
    whole_prompt: bool = False
    """An item is a prompt without text."""
    others: tuple[int, ...] = ()
    """Further ids of placeholders."""
    single: bool = False
    """No setting allows several items."""


@dataclass(frozen=True, slots=True)
class MediaExpander:
    """signs: the text for each kind before expansion."""

    signs: Mapping[str, str]
    work: Callable[[str, Sequence[Span]], tuple[str, list[Span]]]

    def __call__(self, text: str, data: Sequence[Span], /) -> tuple[str, list[Span]]:
        return self.work(text, data)


class MediaPreprocessor:
    """Reads the media of requests to a model. Thread-safe."""

    def __init__(
        self,
        processors: Mapping[str, MediaProcessor],
        tokenizer: Tokenizer,
        gate: MediaConnector,
        settings: MediaSettings | None = None,
    ) -> None:
        """processors: of the model, by kind. At least one."""
        self._tokenizer, self._gate, settings = tokenizer, gate, settings or MediaSettings()
        self._threads, self._turns, self._fetches = ThreadPoolExecutor(READERS, "media"), FairSemaphore(READERS), Fetches(gate)
        self.processors = processors
        self._taken: dict[str, ModelMedia] = {}
        for name, processor in processors.items():
            kind, shown = load_kinds()[name], tokenizer.token_of(processor.token)
            reader, most = kind.open_reader(processor, settings), settings.limits.get(name, MOST_ITEMS)
            single = reader.source or bool(reader.start) or reader.single
            self._taken[name] = ModelMedia(
                kind, reader, processor.token, shown, processor.marker or shown, min(most, 1) if single else most,
                getattr(processor, "whole_prompt", False),
                getattr(processor, "others", ()), single,
            )  # fmt: skip

    @property
    def unsafe(self) -> list[str]:
        """Kinds for which user text could be mistaken for an item."""
        special = set(self._tokenizer.special_texts)
        taken = [t for t in self._taken.values() if not t.whole_prompt]
        return [t.kind.plural for t in taken if not {t.marker, t.shown} <= special]

    def close(self) -> None:
        for taken in self._taken.values():
            taken.reader.close()

    def forget(self) -> None:
        """Forget processed media: later requests read them again."""
        for taken in self._taken.values():
            taken.reader.forget()

    @property
    def whole_prompts(self) -> bool:
        """Is an item a prompt without text? Such a model gives vectors, and reads no conversations."""
        return any(t.whole_prompt for t in self._taken.values())

    # ------------------------------------------------------------ where they are

    def apart(
        self, messages: Sequence[Any], decoding: Mapping[str, Mapping[str, Any]] | None = None
    ) -> tuple[list[Any], list[MediaSource]]:
        """The messages with {"type": KIND} for each item, as templates read them, and the items in order. Other values, not
        messages or parts, are left unchanged, to be rejected elsewhere. decoding: the request's `media_io_kwargs`, checked by
        `kinds.check_request_decoding`."""
        sources: list[MediaSource] = []
        out = []
        for i, message in enumerate(messages):
            content = message.get("content") if isinstance(message, Mapping) else None
            if not isinstance(content, list | tuple):
                out.append(message)
                continue
            parts = []
            for j, part in enumerate(content):
                at = f"messages[{i}].content[{j}]"
                source = find_source(part, at)
                if source is not None and message.get("role") not in ("user", "tool"):
                    raise RequestError(f"{at}: only messages of role user and tool may hold {name_kinds()}", at)
                if source is not None:
                    sources.append(replace(source, decoding=(decoding or {}).get(source.kind, {})))
                parts.append(part if source is None else {"type": source.kind})
            out.append({**message, "content": parts})
        self.check_sources(sources, "messages")
        return out, sources

    def check_sources(self, sources: Sequence[MediaSource], param: str) -> None:
        """RequestError for media of a kind that the model does not read, or for too many in one prompt."""
        for source in sources:
            if source.kind not in self._taken:
                raise RequestError(f"{source.at}: {load_kinds()[source.kind].unsupported}; omit it", source.at)
        for name, taken in self._taken.items():
            count = sum(source.kind == name for source in sources)
            if count > taken.limit == 1 and taken.single:
                raise RequestError(
                    f"{param}: {count} {taken.kind.plural}; this model reads one in a prompt: send a request for each", param
                )
            if count > taken.limit:
                raise RequestError(
                    f"{param}: {count} {taken.kind.plural}; this server accepts {taken.limit} in one prompt "
                    "(--limit-mm-per-prompt)", param,
                )  # fmt: skip

    # ------------------------------------------------------------ what they are

    def read(self, sources: Sequence[MediaSource]) -> list[MediaItem]:
        """The items, in order. RequestError names the place of the first that cannot be read."""
        data = self._fetches.read_all([(source.url, source.at) for source in sources])
        return list(self._threads.map(self._read, sources, data))

    async def read_async(self, sources: Sequence[MediaSource], tenant: str = "") -> list[MediaItem]:
        """`read`, off the event loop. tenant: gets a fair share where hosts or the decoding processes are busy."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._obtain(source, tenant)) for source in sources]
        except ExceptionGroup as e:
            raise e.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _obtain(self, source: MediaSource, tenant: str) -> MediaItem:
        async with self._fetches.fetch(source.url, source.at, tenant) as data:
            return await self._turns.run(tenant, self._threads, partial(self._read, source, data))

    def _read(self, source: MediaSource, fetched: bytes = b"") -> MediaItem:
        data = source.data or fetched or (self._gate.read(source.url, source.at) if source.url else b"")
        return MediaItem(source.kind, self._taken[source.kind].reader.read(source, data))

    # ------------------------------------------------------------ what stands for them

    def expand(self, media: Sequence[MediaItem]) -> MediaExpander:
        """A function that inserts placeholders into a rendered prompt, and moves the spans of caller text."""
        return MediaExpander({name: taken.marker for name, taken in self._taken.items()}, partial(self._expand, media))

    def _sharing(self, attribute: Callable[[ModelMedia], Any]) -> Iterator[tuple[Any, list[ModelMedia]]]:
        """The kinds that share a value of this attribute, with it."""
        order = list(dict.fromkeys(map(attribute, self._taken.values())))
        for value, group in groupby(sorted(self._taken.values(), key=lambda t: order.index(attribute(t))), attribute):
            yield value, list(group)

    def _expand(self, media: Sequence[MediaItem], text: str, data: Sequence[Span]) -> tuple[str, list[Span]]:
        texts, begins = self._texts(media), [0] * len(media)
        places: list[tuple[int, str, str]] = []
        for marker, kinds in self._sharing(lambda t: t.marker):
            mine = _of(kinds, media)
            found = _outside(text, [marker], data)
            if not found and (numbered := kinds[0].reader.numbered):
                found = _outside(text, [numbered.format(i + 1) for i in range(len(mine))], data)
            if len(found) != len(mine):
                raise RequestError(
                    f"messages: the prompt shows {len(found)} of {len(mine)} {_words(kinds)}"
                    + ("" if found else ": the chat template supports none"), "messages",
                )  # fmt: skip
            for i, (at, mark) in zip(mine, found, strict=True):
                begins[i], end = at, at + len(mark)
                adjacent = places[-1:] and places[-1][0] + len(places[-1][1]) == at
                text_of = self._taken[media[i].kind].reader.join(texts[i], bool(adjacent), text[end:])
                places.append((at, mark, text_of))
        for _, kinds in self._sharing(lambda t: t.token):
            if sorted(mine := _of(kinds, media), key=begins.__getitem__) != mine:
                raise RequestError(f"messages: the chat template changes the order of {_words(kinds)}", "messages")
        return _replace(text, sorted(places), data)

    def _texts(self, media: Sequence[MediaItem]) -> list[str]:
        """The text of each item in the prompt."""
        before, out = Counter[str](), []
        for item in media:
            reader = self._taken[item.kind].reader
            number = reader.number.format(before[item.kind], before[item.kind] + 1)
            out.append(number + reader.write_text(item.value, self._tokenizer.token_of))
            before[item.kind] += 1
        return out

    def inputs(
        self, ids: Sequence[int], media: Sequence[MediaItem], choices: int, text: str | None = None
    ) -> tuple[Input, ...]:
        """The media with the positions of their placeholders among a prompt's ids. choices: of the request. text: of the
        prompt, if known."""
        words = self._remove_placeholders(ids, text) if any(t.reader.reads_text for t in self._taken.values()) else ""
        result: list[Input] = []
        for token, kinds in self._sharing(lambda t: t.token):
            mine = [media[i] for i in _of(kinds, media)]
            readers = [self._taken[item.kind].reader for item in mine]
            if kinds[0].reader.start:
                result += [each for reader, item in zip(readers, mine, strict=True) for each in _cover(reader, item, len(ids))]
                continue
            places = np.flatnonzero(np.isin(ids, [token, *kinds[0].others])).astype(np.int32)
            counts = [reader.count(item.value) for reader, item in zip(readers, mine, strict=True)]
            if sum(counts) != places.size:
                raise RequestError(
                    f"prompt: {places.size} placeholders for {sum(counts)} vectors of {len(mine)} {_words(kinds)}", "prompt"
                )
            for reader, item, count, end in zip(readers, mine, counts, accumulate(counts), strict=True):
                own = places[end - count : end]
                inputs = check_inputs(item.kind, reader.make_inputs(item.value, own), own, reader.source)
                result += [reader.arrange(each, ids, words) for each in inputs]
        size = sum(v.nbytes for item in result for v in item.data)
        if size * choices > MOST_BYTES:
            raise RequestError(
                f"prompt: {name_kinds()} of {size >> 20} MiB for {choices} choices are more than {MOST_BYTES >> 20} MiB: "
                "send fewer or smaller ones, or ask for fewer choices at once", "prompt",
            )  # fmt: skip
        result.sort(key=first_position)
        most = max((taken.reader.prefix for taken in self._taken.values()), default=0)
        return tuple(_join_prefix(result, ids, most) if most and result else result)

    def _remove_placeholders(self, ids: Sequence[int], text: str | None) -> str:
        text = self._tokenizer.decode(ids) if text is None else text
        for taken in self._taken.values():
            text = text.replace(taken.shown, "") if taken.shown else text
        return text

    # ------------------------------------------------------------ prompts of programs

    def check_whole(self, sources: Sequence[MediaSource], text: str, param: str) -> None:
        """RequestError where items are prompts without text, and this is not one of them."""
        if len(sources) != 1 or text.strip():
            raise RequestError(
                f"{param}: this model's prompts are either a text or one {self._one_word}; send them apart", param
            )

    @property
    def _one_word(self) -> str:
        return " or ".join(t.kind.name for t in self._taken.values() if t.whole_prompt)

    def whole_prompt(self, item: MediaItem) -> dict[str, Any]:
        """The prompt that an item is: its placeholder, or the first tokens that it covers."""
        taken = self._taken[item.kind]
        return {"prompt_token_ids": list(taken.reader.start) or [taken.token], MEDIA: [item]}

    def prompt(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """{"prompt": text, "multi_modal_data": {KIND: one or several}} with media read and placeholders inserted.

        An image is one of PIL's, u8[height, width, 3] of numpy, bytes of a file, or a URL. A recording is samples, (samples,
        rate), bytes of a file, or a URL. "multi_modal_uuids" names items of kinds that cache some: None then refers to a
        cached item."""
        given = fields[NAME]
        rest = {k: v for k, v in fields.items() if k not in (NAME, UUIDS)}
        if not isinstance(given, Mapping) or given.keys() - self._taken.keys():
            words = " and ".join(f'"{kind}": one or several' for kind in self._taken)
            raise RequestError(
                f"{NAME} must be {{{words}}}; with this model this version reads {_words(self._taken.values())}", NAME
            )
        sources: list[MediaSource] = []
        for name, taken in self._taken.items():
            several = taken.kind.split_items(given.get(name, []))
            names = _names(taken.kind, fields.get(UUIDS), len(several)) if taken.kind.named else [""] * len(several)
            sources += [
                taken.kind.read_object(item, f"{NAME}.{name}[{i}]", called)
                for i, (item, called) in enumerate(zip(several, names, strict=True))
            ]
        self.check_sources(sources, NAME)
        text = rest.get("prompt")
        if rest.get("prompt_token_ids") is not None or not isinstance(text, str):
            marks = " and ".join(f"{t.marker} stands for {t.kind.plural}" for t in self._taken.values())
            raise RequestError(f"{NAME}: goes with a prompt of text, in which {marks}", NAME)
        if self.whole_prompts:
            self.check_whole(sources, text, NAME)
            return {**rest, **self.whole_prompt(*self.read(sources))}
        for kind in dict.fromkeys(source.kind for source in sources):
            text = _replace_numbered(text, self._taken[kind].reader.numbered, self._taken[kind].marker)
            try:
                text = self._taken[kind].reader.complete(text)
            except ValueError as e:
                raise RequestError(f"prompt: {e}", "prompt") from e
        media = self.read(sources)
        text, _ = self._expand(media, text, [])
        bare = any(self._taken[item.kind].reader.bare for item in media)
        return self.attach({**rest, "prompt": text, "prompt_token_ids": self._tokenizer.encode(text, not bare)}, media)

    def attach(self, prompt: Mapping[str, Any], items: Sequence[MediaItem]) -> dict[str, Any]:
        """The prompt with its items, in ids with those that the tokenizer does not have."""
        begins = [begin for item in items[:1] if (begin := self._taken[item.kind].reader.first_id) is not None]
        return {**prompt, **({"prompt_token_ids": [*begins, *prompt["prompt_token_ids"]]} if begins else {}), MEDIA: items}

    async def prompt_async(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """`prompt`, off the event loop."""
        return await asyncio.to_thread(self.prompt, fields)


def _replace_numbered(text: str, numbered: str, marker: str) -> str:
    """A prompt with the marker for each of a kind's numbered placeholders, which must be in order."""
    if not numbered:
        return text
    before, behind = map(re.escape, numbered.split("{}"))
    found = [int(n) for n in re.findall(f"{before}([0-9]{{1,4}}){behind}", text)]
    if found != list(range(1, len(found) + 1)):
        names = ", ".join(numbered.format(n) for n in found[:5])
        raise RequestError(f"prompt: has {names}: number placeholders from 1 on, each once and in order", "prompt")
    return re.sub(f"{before}[0-9]{{1,4}}{behind}", lambda _: marker, text)


def _cover(reader: MediaReader, item: MediaItem, prompt: int) -> Sequence[Input]:
    """The inputs of an item whose vectors are added to the first tokens of a sequence. prompt: tokens of its prompt."""
    count = reader.count(item.value)
    if count <= prompt:
        raise RequestError(
            f"prompt: the {item.kind} covers {count} tokens, and the prompt has {prompt}: send a longer one", "prompt"
        )
    places = np.arange(count, dtype=np.int32)
    return check_inputs(item.kind, reader.make_inputs(item.value, places), places)


def _join_prefix(items: Sequence[Input], ids: Sequence[int], most: int) -> list[Input]:
    """The inputs of a prompt in which every token attends to every other. ids: of the whole prompt. most: its longest."""
    if len(ids) > most:
        raise RequestError(
            f"prompt: it has {len(ids)} tokens, and with {name_kinds()} at most {most}, the model's sliding window: shorten it",
            "prompt",
        )  # fmt: skip
    digest = hashlib.blake2b(np.array(ids, np.int64).tobytes(), digest_size=16)
    for item in items:
        digest.update(item.digest)
    return [msgspec.structs.replace(item, prefix=len(ids), prefix_digest=digest.digest()) for item in items]


def _of(kinds: Sequence[ModelMedia], media: Sequence[MediaItem]) -> list[int]:
    """Indices of the media of these kinds."""
    names = {taken.kind.name for taken in kinds}
    return [i for i, item in enumerate(media) if item.kind in names]


def _words(kinds: Iterable[ModelMedia]) -> str:
    return " and ".join(taken.kind.plural for taken in kinds)


def _outside(text: str, marks: Sequence[str], data: Sequence[Span]) -> list[tuple[int, str]]:
    """Where each mark stands outside the caller's text, with the mark."""
    return [(at, mark) for mark in marks for at in _found(text, mark) if not _inside(at, at + len(mark), data)]


def _found(text: str, marker: str) -> list[int]:
    out, at = [], text.find(marker)
    while at >= 0:
        out.append(at)
        at = text.find(marker, at + len(marker))
    return out


def _replace(text: str, places: Sequence[tuple[int, str, str]], data: Sequence[Span]) -> tuple[str, list[Span]]:
    """The text with each (position, old, new) replaced, and the moved spans of caller text. places: ascending."""
    out: list[str] = []
    moved: list[Span] = []
    last = grown = 0
    spans = list(data)
    for at, marker, shown in places:
        while spans and spans[0][1] <= at:
            a, b = spans.pop(0)
            moved.append((a + grown, b + grown))
        out += [text[last:at], shown]
        last = at + len(marker)
        grown += len(shown) - len(marker)
    return "".join([*out, text[last:]]), [*moved, *((a + grown, b + grown) for a, b in spans)]


def _inside(begin: int, end: int, data: Sequence[Span]) -> bool:
    """Does the range overlap caller text? An empty span is a position that no token of ours may cross."""
    return any(begin < b and a < end for a, b in data)


def find_source(part: Any, at: str) -> MediaSource | None:
    """The item of a part of a message; None for other parts. RequestError for an incomplete part."""
    type_ = part.get("type") if isinstance(part, Mapping) else None
    kind = map_part_types().get(type_) if isinstance(type_, str) else None
    return None if kind is None else kind.read_part(part, at)


def _names(kind: MediaKind, identifiers: Any, count: int) -> list[str]:
    """{KIND: one name or several}, None for an item without: a name for each of so many, or ""."""
    if identifiers is None:
        return [""] * count
    given = identifiers.get(kind.name) if isinstance(identifiers, Mapping) and set(identifiers) == {kind.name} else None
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or len(names) != count or not all(isinstance(n, str | None) for n in names):
        raise RequestError(f'{UUIDS}: must be {{"{kind.name}": a name, or None, for each of the {count} {kind.plural}}}', UUIDS)
    return [n or "" for n in names]


def first_position(item: Input) -> int:
    """Of its placeholders; -1 of a source, on which all tokens depend."""
    return int(item.positions[0]) if item.positions.size else -1


def check_inputs(kind: str, inputs: Sequence[Input], places: np.ndarray, source: bool = False) -> Sequence[Input]:
    """The inputs that a reader made of an item with these placeholders. Packages write readers, and a position elsewhere
    would end the engine. source: items are sources of cross-attention. ValueError."""
    for item in inputs:
        at = np.asarray(item.positions)
        if at.ndim != 1 or at.size == source or at.dtype.kind not in "iu" or not np.isin(at, places).all():
            raise ValueError(f"media kind {kind}: make_inputs returned positions without placeholders of the item")
    return inputs
