"""Messages between the client (the owner of a request's state) and the engine core. One file, both directions.

Plain msgspec structs with numpy arrays: the same objects in process and, through `engine.ipc`, over a unix socket. Requests
are known here by an integer handle the client chooses. Text never crosses.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from thalweg.config import EngineArgs, EngineConfig
from thalweg.grammar.source import GrammarSource as GrammarSource
from thalweg.grammar.source import GrammarVocabulary as GrammarVocabulary

# ---------------------------------------------------------------- client -> core


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """A non-text item of a prompt: an image, a recording, vectors of the caller's. The control plane does not depend on the
    kind: it reads only the facts below."""

    kind: str
    """A row of `thalweg.media.kinds`, with the encoder of the vectors. Any other name where the caller sent them."""
    digest: bytes
    """Unique to this input among all of this client, of any kind. It salts the prefix cache and names cached vectors."""
    positions: np.ndarray  # i32[N], ascending
    """Prompt positions of the placeholders, one for each vector. Empty: the source of cross attention, on which every token
    of the sequence depends, or with `prefix` the prompt of a prefix LM."""
    prefix_digests: tuple[bytes, ...] = ()
    """For a causal encoder, a digest for each position: of what the vectors up to it depend on. It salts cached blocks that end
    there, so that items with equal beginnings share them. (): every vector depends on the whole item."""
    data: tuple[np.ndarray, ...] = ()
    """Arrays for the encoder of its kind."""
    size: tuple[int, ...] = ()
    """Its size as sent, in units of its kind."""
    vectors: np.ndarray | None = None  # f32[N, hidden]
    """The caller's vectors. None: an encoder computes them."""
    uncut: bool = False
    """The tokens from its first placeholder to its last are computed in one step."""
    bidirectional: bool = False
    """These tokens attend to each other in both directions, so they are computed in one step too."""
    prefix: int = 0
    """With `bidirectional`: tokens of the prompt that attend to each other, counted from its first. 0: only those between
    the placeholders."""
    prefix_digest: bytes = b""
    """With `prefix`: identifies all that these tokens depend on. It salts their cached blocks instead of `digest`."""
    axes: np.ndarray | None = None  # i32[lead + last - first + 1 + tail, axes]
    """Positions of these tokens along several axes, relative to that of the first, as text. None: consecutive, as text."""
    lead: int = 0
    """With `axes`: tokens before the first placeholder that have such positions, too."""
    tail: int = 0
    """The same behind the last."""
    extent: int = 0
    """With `axes`: how far the next token's position lies behind that of the first."""
    spoken: np.ndarray | None = None  # i32[N]
    """Tokens of a text that is spoken, one for each position of the sequence from its first, also behind the prompt."""
    most_a_step: int = 0
    """At most so many sequences with an input like this one enter in a step. 0: no limit."""

    @property
    def is_encoded(self) -> bool:
        """Do its placeholders wait for an encoder?"""
        return self.vectors is None and self.positions.size > 0

    @property
    def is_source(self) -> bool:
        return not self.positions.size and self.spoken is None and not self.prefix

    @property
    def span(self) -> tuple[int, int]:
        """[first, end) of its placeholders, and of the tokens between; with `prefix`, of that."""
        return (0, self.prefix) if self.prefix else (int(self.positions[0]), int(self.positions[-1]) + 1)


class TokenSampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """SamplingParams with every text, default and name resolved to token ids: all the engine needs."""

    max_tokens: int
    """Output tokens, counted from EngineRequest.prompt_len."""
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    """Always concrete: the client chooses one where the caller gave none, so that a replay samples the same tokens."""
    eos_ids: tuple[int, ...] = ()
    """End-of-sequence ids that stop the request (empty with ignore_eos). Reported with stop_reason None."""
    stop_ids: tuple[int, ...] = ()
    """The caller's stop_token_ids. Reported with their id as stop_reason."""
    logprobs: int = -1
    """-1: none. k: the sampled token's and the k best."""
    prompt_logprobs: int = -1
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_ids: tuple[int, ...] = ()
    """Empty: every token."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences in which the last token may not follow the others."""
    grammar: GrammarSource | None = None
    """The constraint on the output. Its end is an end of sequence, for which `eos_ids` must have an id: it overrides
    min_tokens and bad words where nothing else is left."""
    each_token: bool = False
    """Pooling models: return a result of each token, in addition to that of the sequence."""
    drafts: bool = True
    """May steps verify drafts of it?"""
    extra: dict[str, Any] = {}
    """SamplingParams.extra_args, as checked by their features (`thalweg.features`): plain values."""


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to generate: a request with n choices has n. `tokens` holds the prompt and, when a request is resubmitted
    after a crash, the tokens already emitted. Output counts and noise depend on the position, so it just continues."""

    handle: int
    tokens: np.ndarray  # i32, at least one
    prompt_len: int
    sampling: TokenSampling
    inputs: tuple[Input, ...] = ()
    """In the order of their positions."""
    priority: int = 0
    """Lower runs first under the priority policy."""
    cache_salt: str = ""
    """Sequences share cached prefixes only with the same salt (tenant)."""
    adapter: bytes = b""
    """Digest of a loaded adapter (`LoadAdapter`). b"": the base model. Cached prefixes are shared only with the same."""
    read_prefix_cache: bool = True
    hand_over: bool = False
    """Another engine continues it: its end is reported when the store has its blocks."""
    least_cached: float = 0.0
    """Share of the prompt that must be cached when it starts. Else it ends with the reason cache_threshold."""
    retain: float = 0.0
    """Seconds after its end for which its blocks are kept, while there are others to hand out."""
    streamed: bool = True
    """A caller reads its tokens one by one, so prompts in the same steps are rationed."""
    pool: bool = False
    """Returns a vector, not tokens. The step that computes all its tokens ends it."""
    frames: np.ndarray | None = None  # i32[tokens.size - prompt_len, books - 1]
    """The codes after the first of tokens already emitted, of models whose tokens are frames."""
    encode_only: bool = False
    """With `pool`: its result is the vectors of its only input, and takes no step."""


class StartHint(msgspec.Struct, frozen=True, tag=True):
    """The first message, sent as the process is made: the expected arguments of Start, as far as known by then (the model may
    be a hub's name for it), so that the process can prepare. None for a standby process. Promises nothing."""

    args: EngineArgs | None


class Start(msgspec.Struct, frozen=True, tag=True):
    """The second message: the user's arguments. `args.model` is a local directory by now. Answered by Ready or Failed."""

    args: EngineArgs


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Forget these sequences. No further output is sent. Unknown handles are fine: they have just finished."""

    handles: list[int]


class Add(msgspec.Struct, frozen=True, tag=True):
    requests: list[EngineRequest]


class Control(msgspec.Struct, frozen=True, tag=True):
    """An operation on the engine itself. A Reply with the same id answers it."""

    id: int
    op: str
    """reset_prefix_cache | pause | resume | start_profile | stop_profile | shutdown"""


class LoadAdapter(msgspec.Struct, frozen=True, tag=True):
    """Read an adapter, concurrently with the steps. Requests may name its digest from now on, and wait until it is loaded. A
    Reply with the same id reports success, or the reason of a failure: then they end with an error."""

    id: int
    digest: bytes
    """Digest of the files' content. Other content is rejected."""
    path: str


class UnloadAdapter(msgspec.Struct, frozen=True, tag=True):
    """Forget an adapter that no request uses any more. A Reply with the same id gives the reason if it does not."""

    id: int
    digest: bytes


class Resume(msgspec.Struct, frozen=True, tag=True):
    """The answer to Ready after Regrouping: what came before was for the engine as it was."""


ToCore = StartHint | Start | Resume | GrammarVocabulary | Add | Abort | Control | LoadAdapter | UnloadAdapter
"""A Vocabulary comes before the first request with a grammar, once."""

# ---------------------------------------------------------------- core -> client


class SequenceFinished(msgspec.Struct, frozen=True):
    """The sequence ended with this step's token (if it has one in the same frame). The core has freed it."""

    handle: int
    reason: str
    """stop | length | abort | error | cache_threshold"""
    stop_id: int = -1
    """The stop token id. -1 for end-of-sequence and everything else."""
    error: str = ""
    chunks: int = 0
    """Chunks of its prompt's computation, including recomputation after preemptions."""
    rounds: bytes = b""
    """Two bytes for each step that verified drafts of it: how many, and how many were accepted."""


class SequenceStarted(msgspec.Struct, frozen=True):
    """First scheduled. Times are monotonic seconds of the host's clock, shared by all its processes."""

    handle: int
    cached_tokens: int
    queued_ts: float
    scheduled_ts: float
    held: str = ""
    """The reason for waiting when it was last passed over, first in the queue: slots, tokens, cache, prefix, partial,
    encoder, adapter. "": it never was."""
    stored_tokens: int = 0
    """Of the cached ones, those loaded from a store."""


class TokenLogprobs(msgspec.Struct, frozen=True):
    """hal.step.Logprobs for the rows of Outputs.handles with logprobs: row i belongs to Outputs.handles[rows[i]]. The client
    removes columns that a row did not ask for."""

    rows: np.ndarray  # i32[M]
    tokens: np.ndarray  # i32[M, 1 + k]
    values: np.ndarray  # f32[M, 1 + k]
    ranks: np.ndarray  # i32[M]


class PromptScores(msgspec.Struct, frozen=True):
    """Logprobs of prompt tokens [start, start + len(ranks)) of one sequence. The first prompt token has none."""

    handle: int
    start: int
    tokens: np.ndarray  # i32[P, 1 + k]
    values: np.ndarray  # f32[P, 1 + k]
    ranks: np.ndarray  # i32[P]


class PooledVectors(msgspec.Struct, frozen=True):
    """The vectors of pooling sequences, which have ended with it. Not normalised."""

    handles: np.ndarray  # i64[N]
    vectors: np.ndarray  # f32[N, H]


class TokenVectors(msgspec.Struct, frozen=True):
    """Results of tokens [start, start + N) of one sequence. Not normalised."""

    handle: int
    start: int
    values: np.ndarray  # f32[N, H]


class Stats(msgspec.Struct, frozen=True):
    """A snapshot. Counters run from the core's start."""

    running: int
    waiting: int
    blocks_used: int
    blocks_total: int
    prefix_queries: int
    prefix_hits: int
    """Tokens, as prefix_queries."""
    preemptions: int
    steps: int
    prompt_tokens: int
    generated_tokens: int
    prompt_cached: int = 0
    """Tokens of prompt_tokens that were found in the prefix cache when the sequence first ran."""
    drafts: int = 0
    """Sequences with verified drafts, summed over steps."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    """Tokens of draft_tokens that were accepted."""
    accepted_per_position: list[int] = []
    """Accepted tokens by their position among a sequence's drafts, from the first."""
    store_queries: int = 0
    """Prompt tokens looked up in a store."""
    store_hits: int = 0
    """Prompt tokens loaded from it."""
    store_saved: int = 0
    """Bytes saved in it."""
    store_failed: int = 0
    """Blocks and calls that failed. Tokens that failed to load were computed."""
    prompt_stored: int = 0
    """Tokens of prompt_cached that came from a store."""


class BlocksStored(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Blocks of one KV group that can be found from now on, each the continuation of the one before."""

    group: int
    kind: str
    """As `hal.kv.KVSpec.kind`."""
    window: int
    block_tokens: int
    ids: list[int]
    """Below 2**63, the same for equal contents after equal histories. They reveal no key."""
    parent: int | None
    """The block before the first one."""
    tokens: np.ndarray  # i32[len(ids) * block_tokens]
    adapter: bytes
    """Digest. b"": the base model."""
    cache_salt: str
    media: list[list[tuple[bytes, int]]]
    """Per block: (digest of an input, how many of its placeholders precede the block)."""


class BlocksRemoved(msgspec.Struct, frozen=True, tag=True):
    """Blocks of one KV group that can no longer be found."""

    group: int
    ids: list[int]


class BlocksCleared(msgspec.Struct, frozen=True, tag=True):
    """No block can be found: the cache was reset, or the engine has just started."""


KvEvent = BlocksStored | BlocksRemoved | BlocksCleared


class Outputs(msgspec.Struct, tag=True):
    """The outputs of one step, as arrays: token i belongs to the sequence handles[i] (a handle may repeat when speculating)."""

    handles: np.ndarray  # i64[N]
    tokens: np.ndarray  # i32[N]
    time: float
    """Monotonic seconds when the result was read."""
    finished: list[SequenceFinished] = []
    started: list[SequenceStarted] = []
    logprobs: TokenLogprobs | None = None
    prompt_scores: list[PromptScores] = []
    stats: Stats | None = None
    step_tokens: int = 0
    """Prompt tokens the step computed and tokens it sampled."""
    preempted: list[int] = []
    """Sequences preempted since the last frame. One may be in it twice."""
    pooled: PooledVectors | None = None
    frames: np.ndarray | None = None  # i32[N, books - 1]
    """As `StepResult.frames`, of each token."""
    each: list[TokenVectors] = []
    kv_events: list[KvEvent] = []
    """Changes of the prefix cache since the last frame, if they are published (kv_events_config)."""
    engine: int = 0
    """Number of the engine among several. Set by the client."""

    def answers(self, handle: int) -> bool:
        """Did the sequence get a token, or its vector?"""
        return handle in self.handles or (self.pooled is not None and handle in self.pooled.handles)

    def error_of(self, handle: int) -> str:
        """The error with which the sequence ended. Empty if it did not."""
        return next((f.error for f in self.finished if f.handle == handle and f.reason == "error"), "")

    def output_handles(self) -> list[int]:
        """Handles of the sequences with `answers`."""
        vectors = [] if self.pooled is None else self.pooled.handles.tolist()
        return [*self.handles.tolist(), *vectors]


class RankFacts(msgspec.Struct, frozen=True):
    """A rank of an engine that can serve."""

    rank: int
    pid: int
    read_bytes: int
    """Bytes of tensors that its process has read from files."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine can serve. `plan` is the kernel plan, a line each."""

    config: EngineConfig
    plan: list[str]
    load_seconds: float
    ranks: list[RankFacts] = []
    """Of one rank, its own. Of the engine, all in order. []: the executor does not say."""


class Regrouping(msgspec.Struct, frozen=True, tag=True):
    """Some ranks are lost, and are replaced. The others keep their weights. The engine knows no request any more. Followed by
    Ready, or by EngineFailed. `kind` and `message` are as of EngineFailed."""

    kind: str
    message: str


class Reply(msgspec.Struct, frozen=True, tag=True):
    id: int
    ok: bool
    refused: str = ""
    """The reason why it was not done, for the caller."""


class EngineFailed(msgspec.Struct, frozen=True, tag=True):
    """The engine could not start, or died: its last message. `kind` is the error class's name."""

    kind: str
    message: str


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """Sent at intervals by a separate thread. `steps` standing still while `working` means a hang."""

    steps: int
    working: bool


FromCore = Outputs | Ready | Regrouping | Reply | EngineFailed | Heartbeat
