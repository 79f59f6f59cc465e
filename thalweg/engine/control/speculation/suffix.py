"""Drafts from the longest match of a sequence's last tokens, in its own text and in recent outputs of others.

This is suffix decoding (Oliaro et al. 2024, "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications"). The
places where the longest match was seen vote on each next token. A draft ends where its estimated probability, the product of
the shares of votes, falls below a bound. The source whose drafts have the larger sum of probabilities is used.

An index of short n-grams replaces the suffix tree, so memory is bounded and each token is indexed once. An n-gram keeps its
latest `PLACES` places, and matches are compared backwards from those.

Outputs are proposed only to requests of the same salt and adapter. Texts are forgotten least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from thalweg.drafters import MOST_DRAFTS, TOKENS, DrafterOption, SpeculationConfig, number, whole
from thalweg.engine.control.speculation.drafter import Drafter, Proposals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from thalweg.engine.control.request import Request
    from thalweg.engine.control.slots import Slots

    I32 = NDArray[np.int32]

DEPTH = "suffix_decoding_max_tree_depth"
REQUESTS = "suffix_decoding_max_cached_requests"
FACTOR = "suffix_decoding_max_spec_factor"
LEAST = "suffix_decoding_min_token_prob"

PLACES = 16
"""Places kept of an n-gram: the latest ones."""
LONG, SHORT = 8, 2
"""Sizes of the n-grams that are indexed."""
MOST_TOKENS = 1 << 17
"""Tokens of cached outputs in all: at most about 90 MB."""
AT_ONCE = 2048
"""Tokens of a sequence that are indexed in a step. A longer prompt has no drafts until it is indexed."""


@dataclass(slots=True, eq=False)
class _CachedText:
    scope: bytes = b""
    tokens: list[int] = field(default_factory=list)
    cached: bool = True
    """Is it still in the cache?"""


class _NGramPlaces:
    """Where the n-grams of texts ended."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        """sizes: the longest first."""
        self._sizes = sizes
        self._places: dict[tuple[object, ...], list[tuple[_CachedText, int]]] = {}

    def add(self, text: _CachedText, end: int) -> None:
        for n in self._sizes:
            if n <= end:
                places = self._places.setdefault((text.scope, *text.tokens[end - n : end]), [])
                places.append((text, end))
                if len(places) > PLACES:
                    del places[0]

    def remove(self, text: _CachedText) -> None:
        for end in range(1, len(text.tokens) + 1):
            for n in self._sizes:
                key = (text.scope, *text.tokens[end - n : end]) if n <= end else ()
                if places := self._places.get(key):
                    left = [place for place in places if place[0] is not text]
                    if left:
                        self._places[key] = left
                    else:
                        del self._places[key]

    def longest(
        self, scope: bytes, tokens: list[int], most: int, but: _CachedText | None
    ) -> tuple[int, list[tuple[_CachedText, int]]]:
        """The length of the longest match of the last tokens, `most` at most, and the places after it, the latest first. No
        place is in the text `but`."""
        for n in self._sizes:
            if n > len(tokens):
                continue
            found = [place for place in self._places.get((scope, *tokens[-n:]), ()) if place[0] is not but]
            if found:
                lengths = [_common(tokens, text.tokens, end, n, most) for text, end in found]
                length = max(lengths)
                return length, [place for place, each in zip(found, lengths, strict=True) if each == length][::-1]
        return 0, []


def _common(tokens: list[int], other: list[int], end: int, known: int, most: int) -> int:
    """Tokens before `end` of the other text that equal the last ones, `most` at most. `known` of them are equal."""
    most = min(most, end, len(tokens))
    while known < most and other[end - 1 - known] == tokens[-1 - known]:
        known += 1
    return known


class _Outputs:
    """Recent outputs of all requests, within bounds of requests and tokens."""

    def __init__(self, sizes: tuple[int, ...], requests: int) -> None:
        self.index = _NGramPlaces(sizes)
        self._most = requests
        self._texts: OrderedDict[int, _CachedText] = OrderedDict()
        self.tokens = 0

    @property
    def requests(self) -> int:
        return len(self._texts)

    def append(self, text: _CachedText, tokens: Sequence[int]) -> None:
        """Add tokens to a text, and forget the least recently used texts beyond the bounds."""
        for token in tokens if self._most else ():
            text.tokens.append(token)
            self.index.add(text, len(text.tokens))
            self.tokens += 1
        if text.tokens:
            self._texts[id(text)] = text
            self.use(text)
        while len(self._texts) > self._most or self.tokens > MOST_TOKENS:
            _, oldest = self._texts.popitem(last=False)
            self.index.remove(oldest)
            self.tokens -= len(oldest.tokens)
            oldest.cached = False

    def use(self, text: _CachedText) -> None:
        self._texts.move_to_end(id(text))


@dataclass(slots=True)
class _Sequence:
    """The text of a slot's sequence, and its index."""

    request: Request
    text: _CachedText
    index: _NGramPlaces
    output: _CachedText
    answered: int
    """Tokens of the sequence that the cached outputs have, prompt included."""
    indexed: int = 0
    """N-grams that end before it are indexed."""
    drafts: tuple[int, list[int]] = (-1, [])
    """Known tokens, and the drafts after those."""


class SuffixDrafter(Drafter):
    options: ClassVar[Mapping[str, DrafterOption]] = {
        TOKENS: DrafterOption(whole(1, MOST_DRAFTS), default=24),
        DEPTH: DrafterOption(whole(1, MOST_DRAFTS), default=24),
        REQUESTS: DrafterOption(whole(0, 1 << 20), default=10_000),
        FACTOR: DrafterOption(number(0, 64), default=1.0),
        LEAST: DrafterOption(number(0, 1), default=0.1),
    }

    def __init__(self, config: SpeculationConfig, slots: Slots) -> None:
        super().__init__(config, slots)
        requested = config.options
        self._depth, self._factor, self._least = requested[DEPTH], requested[FACTOR], requested[LEAST]
        self._sizes = tuple(sorted({min(LONG, self._depth), min(SHORT, self._depth)}, reverse=True))
        self.outputs = _Outputs(self._sizes, requested[REQUESTS])
        self._sequences: dict[int, _Sequence] = {}

    def propose(self, slots: I32, most: I32) -> Proposals:
        return Proposals.of([self._drafts(slot)[:n] for slot, n in zip(slots.tolist(), most.tolist(), strict=True)])

    def is_promising(self, slots: I32) -> NDArray[np.bool_]:
        return np.fromiter((bool(self._drafts(slot)) for slot in slots.tolist()), np.bool_, slots.size)

    def finish(self, slot: int) -> None:
        self._read(slot)
        self._sequences.pop(slot, None)

    def _read(self, slot: int) -> _Sequence:
        """The slot's sequence, with its known tokens indexed, AT_ONCE at most."""
        s = self._slots
        sequence, request, known = self._sequences.get(slot), s.requests[slot], int(s.known[slot])
        assert request is not None
        if sequence is None or sequence.request is not request:
            text, output = _CachedText(), _CachedText(request.salt)
            sequence = _Sequence(request, text, _NGramPlaces(self._sizes), output, request.tokens.size)
            self._sequences[slot] = sequence
        tokens, upto = sequence.text.tokens, min(known, sequence.indexed + AT_ONCE)
        tokens += s.tokens[slot, len(tokens) : known].tolist()
        for end in range(sequence.indexed, upto):
            sequence.index.add(sequence.text, end)
        sequence.indexed = max(sequence.indexed, upto)
        if sequence.answered < known:
            if not sequence.output.cached:
                sequence.output = _CachedText(request.salt)
            self.outputs.append(sequence.output, tokens[sequence.answered : known])
            sequence.answered = known
        return sequence

    def _drafts(self, slot: int) -> list[int]:
        sequence = self._read(slot)
        known = len(sequence.text.tokens)
        if sequence.drafts[0] != known:
            sequence.drafts = known, self._choose(sequence) if sequence.indexed == known else []
        return sequence.drafts[1]

    def _choose(self, sequence: _Sequence) -> list[int]:
        """The drafts of the source with the larger sum of probabilities. Of equal ones the sequence itself has priority."""
        tokens, scope = sequence.text.tokens, sequence.output.scope
        length, places = sequence.index.longest(b"", tokens, self._depth, None)
        drafts, score, _ = self._vote(places, length, sequence.text)
        length, places = self.outputs.index.longest(scope, tokens[-self._depth :], self._depth, sequence.output)
        others, better, sources = self._vote(places, length, None)
        if better <= score:
            return drafts
        for text in sources:
            self.outputs.use(text)
        return others

    def _vote(
        self, places: list[tuple[_CachedText, int]], length: int, own: _CachedText | None
    ) -> tuple[list[int], float, list[_CachedText]]:  # fmt: skip
        """The drafts after a match of this length, the sum of their probabilities, and the texts that they follow to their
        end. Of tokens with equally many votes the latest is proposed. The text `own` continues with the drafts, so a loop of
        any length is followed."""
        drafts: list[int] = []
        score, probability = 0.0, 1.0
        while len(drafts) < min(self.most, int(self._factor * length)):
            votes: dict[int, list[tuple[_CachedText, int]]] = {}
            for text, at in places:
                if at < len(text.tokens):
                    votes.setdefault(text.tokens[at], []).append((text, at + 1))
                elif text is own:
                    votes.setdefault(drafts[at - len(text.tokens)], []).append((text, at + 1))
            if not votes:
                break
            token, kept = max(votes.items(), key=lambda each: len(each[1]))
            probability *= len(kept) / sum(map(len, votes.values()))
            if probability < self._least:
                break
            drafts.append(token)
            score += probability
            places = kept
        return drafts, score, [text for text, _ in places]
