"""One sequence in the control plane: the request, and its state while it waits.

While a sequence runs, its progress is in `slots` (arrays), not here; a preempted one copies its tokens back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from thalweg.config import EngineConfig
from thalweg.engine.control.cache.prefix import Node
from thalweg.engine.messages import EngineRequest, Input, SequenceFinished, TokenSampling

INT32_MAX = 2**31 - 1
ADAPTER, ADAPTER_DIGEST = b"\0adapter:", 32
"""Begin of the salt of requests with an adapter, and the bytes of the digest after it."""


@dataclass(slots=True, eq=False)
class Request:
    handle: int
    sampling: TokenSampling
    prompt_len: int
    rank: tuple[int, int]
    """(priority, arrival): the smaller runs first and is preempted last."""
    salt: bytes
    """As `prefix_salt` gives it."""
    read_cache: bool
    limit: int
    """Length at which it ends: prompt and output, bounded by the model's context."""
    queued: float
    tokens: np.ndarray
    """i32; every token known when it entered the waiting queue."""
    streamed: bool = True
    inputs: tuple[Input, ...] = ()
    together: tuple[tuple[int, int], ...] = ()
    """Stretches [first, end) of the prompt, each to be computed in one step."""
    most_a_step: int = 0
    """At most so many requests with a limit enter in the step in which it enters. 0: no limit."""
    slot: int = 0
    """0 while waiting."""
    started: bool = False
    scored: int = 1
    """Prompt tokens below this have had their logprobs sent (the first has none)."""
    scored_scheduled: int = 1
    """The same, counting launched steps."""
    keys: list[bytes] = field(default_factory=list)
    """Keys of its full blocks, from the first; kept over preemption."""
    nodes: list[Node] = field(default_factory=list)
    """Its published blocks, from the first; only while running."""
    publishing: bool = True
    """False once a block could not be published: those after it would have no parent."""
    waits_for: bytes = b""
    """Key of the last block it would rather find than compute, when it last looked."""
    demand: list[int] = field(default_factory=list)
    """Blocks it lacked room for when it last looked, per KV group."""
    held: str = ""
    """The reason for waiting when it was last passed over (`SequenceStarted.held`)."""
    frames: list[np.ndarray] = field(default_factory=list)
    """i32[books - 1] of each token after the prompt, of models whose tokens are frames."""
    chunks: int = 0
    rounds: bytearray = field(default_factory=bytearray)
    """As `SequenceFinished.rounds`."""
    gated: bool = False
    """Must tokens of its prompt wait for a part (`Builder.gates`)?"""
    adapter: bytes = b""
    """Digest. b"": the base model."""
    overtaken: int = 0
    """Requests with other adapters that entered while it waited for a slot."""
    hand_over: bool = False
    """As `EngineRequest.hand_over`."""
    least_cached: float = 0.0
    """As `EngineRequest.least_cached`."""
    retain: float = 0.0
    """As `EngineRequest.retain`."""
    stored: int = 0
    """Tokens that came from the store when it last began to wait."""
    tried_store: bool = False
    """Has it asked the store for a longer prefix since it last began to wait?"""
    claims: set[bytes] = field(default_factory=set)
    """Keys of blocks it is computing now, for others to wait for."""

    def salt_of(self, begin: int, end: int) -> bytes:
        """The salt of the block of tokens [begin, end). Placeholders are equal for all inputs, so it names the inputs that
        the block holds placeholders of, and which ones. Of other blocks it is the request's own."""
        out = b""
        for item in self.inputs:
            digest = item.digest
            if item.prefix:  # each token depends on all of the prefix
                first, last, digest = 0, int(begin < item.prefix), item.prefix_digest
            elif item.is_source:
                first, last = 0, 1
            else:
                first, last = np.searchsorted(item.positions, (begin, end)).tolist()
            if first < last:
                digest = item.prefix_digests[last - 1] if item.prefix_digests else digest
                out += b"%d:%d:%b" % (first, len(digest), digest)
        # No caller's salt starts with this.
        return b"\0%d:%b%b" % (len(self.salt), self.salt, out) if out else self.salt

    @property
    def has_later_inputs(self) -> bool:
        """Do tokens of its answer have vectors too?"""
        return any(item.positions.size and item.positions[-1] >= self.prompt_len for item in self.inputs)

    @property
    def is_resumed(self) -> bool:
        """Had it begun to answer when it entered the queue?"""
        return bool(self.tokens.size > self.prompt_len)


def prefix_salt(request: EngineRequest) -> bytes:
    """The part of a key that separates its cached prefixes from others': the caller's salt, and the adapter. No caller's salt
    begins with NUL, and other salts continue with digits after it."""
    salt = request.cache_salt.encode("utf-8", "surrogatepass")
    return ADAPTER + request.adapter + salt if request.adapter else salt


@dataclass(frozen=True, slots=True)
class SaltParts:
    """The contents of a block's salt (`Request.salt_of`)."""

    adapter: bytes
    """Digest. b"": the base model."""
    cache_salt: str
    media: tuple[tuple[bytes, int], ...]
    """(digest of an input, how many of its placeholders precede the block), of each input in the block."""


def read_salt(salt: bytes) -> SaltParts:
    """The inverse of `Request.salt_of`."""
    media = list[tuple[bytes, int]]()
    if salt[:1] == b"\0" and salt[1:2].isdigit():
        size, _, rest = salt[1:].partition(b":")
        salt, rest = rest[: int(size)], rest[int(size) :]
        while rest:
            first, size, rest = rest.split(b":", 2)
            media.append((rest[: int(size)], int(first)))
            rest = rest[int(size) :]
    adapter = b""
    if salt.startswith(ADAPTER):
        adapter, salt = salt[len(ADAPTER) :][:ADAPTER_DIGEST], salt[len(ADAPTER) + ADAPTER_DIGEST :]
    return SaltParts(adapter, salt.decode("utf-8", "surrogatepass"), tuple(media))


def find_stretches(inputs: Sequence[Input]) -> tuple[tuple[int, int], ...]:
    """`Request.together` of these inputs."""
    return tuple(item.span for item in inputs if _size_together(item))


def _size_together(item: Input) -> int:
    """Tokens of this input that must be computed in one step. 0: no such limit."""
    if not (item.positions.size or item.prefix) or not (item.uncut or item.bidirectional):
        return 0
    first, end = item.span
    return end - first


def find_limit(inputs: Sequence[Input]) -> int:
    """`Request.most_a_step` of these inputs."""
    return min((item.most_a_step for item in inputs if item.most_a_step), default=0)


def limit_of(request: EngineRequest, max_len: int) -> int:
    """The length at which the request ends. A vector occupies no position of the context, but counts as one token more: it
    ends a sequence as a last token would."""
    return request.prompt_len + 1 if request.pool else min(request.prompt_len + request.sampling.max_tokens, max_len)


def find_end(request: EngineRequest, limit: int) -> SequenceFinished | None:
    """The end of a resubmitted request that needs no more tokens: its end was not reported, as a handed-over request's is not
    before a store has its blocks. None: it goes on. limit: as `limit_of` gives it."""
    sampling, result = request.sampling, request.tokens.size - request.prompt_len
    if result > 0 and result >= (0 if sampling.grammar is not None else sampling.min_tokens):
        last = int(request.tokens[-1])
        if last in sampling.eos_ids:
            return SequenceFinished(request.handle, "stop")
        if last in sampling.stop_ids:
            return SequenceFinished(request.handle, "stop", stop_id=last)
    return SequenceFinished(request.handle, "length") if request.tokens.size >= limit else None


def refuse(request: EngineRequest, config: EngineConfig, bounds: list[tuple[int, int]]) -> str | None:
    """Why this request can never run, or None. bounds: (tokens of a block, usable blocks) of each KV group that keeps every
    token."""
    tokens, sampling, model = request.tokens, request.sampling, config.model
    if not isinstance(tokens, np.ndarray) or tokens.ndim != 1 or tokens.dtype.kind not in "iu" or not tokens.size:
        return "tokens: must be a one-dimensional array of at least one token id"
    if not 1 <= request.prompt_len <= tokens.size:
        return f"prompt_len: {request.prompt_len} is not between 1 and the number of tokens, {tokens.size}"
    ids = model.vocab if model.pooling is None else model.vocab * model.pooling.types
    if int(tokens.min()) < 0 or int(tokens.max()) >= ids:
        return f"tokens: ids must be between 0 and {ids - 1}, the model's vocabulary"
    if sampling.max_tokens < 1:
        return f"max_tokens: must be at least 1, not {sampling.max_tokens}"
    if not request.encode_only and request.pool != (model.pooling is not None):
        return "the model gives vectors, not tokens" if model.pooling else "the model gives tokens, not vectors"
    if request.pool and tokens.size > model.max_len:
        return f"the text has {tokens.size} tokens, and the model's limit is {model.max_len}: shorten it"
    if (not request.pool and request.prompt_len >= model.max_len) or tokens.size > model.max_len:
        return (
            f"the prompt has {request.prompt_len} tokens, but the context holds {model.max_len}, prompt and output together: "
            "shorten the prompt or raise --max-model-len"
        )
    named = (*sampling.allowed_ids, *(i for i, _ in sampling.logit_bias), *(i for w in sampling.bad_words for i in w))
    if any(not 0 <= i < model.vocab for i in named) or any(not w for w in sampling.bad_words):
        return f"allowed_ids, logit_bias, bad_words: ids must be between 0 and {model.vocab - 1}, and no bad word empty"
    for item in request.inputs:
        if (size := _size_together(item)) > config.scheduler.token_budget:
            whole = "the prompt" if item.prefix else f"{'an' if item.kind[:1] in 'aeiou' else 'a'} {item.kind}"
            return (
                f"{whole} has {size} tokens, which are computed together, but a step takes "
                f"{config.scheduler.token_budget}: raise --max-num-batched-tokens"
            )
    if not config.scheduler.chunked_prefill and tokens.size > config.scheduler.token_budget:
        return (
            f"the prompt has {tokens.size} tokens, but with chunked prefill off a step takes {config.scheduler.token_budget}: "
            "raise --max-num-batched-tokens or enable chunked prefill"
        )
    for name in ("eos_ids", "stop_ids"):
        if any(not 0 <= i <= INT32_MAX for i in getattr(sampling, name)):
            return f"{name}: ids must be between 0 and {INT32_MAX}"
    for name in ("top_k", "min_tokens"):
        if not 0 <= getattr(sampling, name) <= INT32_MAX:
            return f"{name}: must be between 0 and {INT32_MAX}"
    for each, blocks in bounds:
        need = -(-tokens.size // each)
        if need > blocks:
            return (
                f"the prompt needs {need} KV cache blocks, but there are only {blocks} ({blocks * each} tokens): "
                "shorten it or give the cache more blocks (--kv-cache-memory-bytes or --num-gpu-blocks-override)"
            )
    return None
