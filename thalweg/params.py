"""SamplingParams: the parameters of one generation. PoolingParams: of one vector. Names, defaults and ranges are vLLM's.

No tensor framework, no tokenizer: `engine.client.inputs` resolves text-valued fields (stop, bad_words).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, get_args, get_type_hints

import msgspec

from thalweg.errors import RequestError
from thalweg.grammar.source import KINDS, Kind

MAX_N = 16384
"""Upper bound of `n`: a request is charged for every choice before any is allocated."""
MAX_STOP = 64
MAX_STOP_CHARS = 4096
"""Most characters of all stop strings together: each is a state of an automaton."""
MAX_BAD_CHARS = 16384
"""Most characters of all bad words together: at worst a token each, sent with every choice."""
MAX_LIST = 100_000
FLAGS = (
    "ignore_eos", "detokenize", "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output",
    "skip_reading_prefix_cache", "flat_logprobs", "disable_spec_decode",
)  # fmt: skip
"""Boolean fields of SamplingParams. 0 and 1 count as such, "false" does not."""
REFUSED_PARAMS = {
    "logprob_token_ids": "logprobs of chosen ids are not supported; request logprobs of the top tokens, and omit it",
    "routed_experts_prompt_start": "the experts of a token are not reported by this version; omit it",
}
"""Known but unsupported fields of SamplingParams -> the reason and the alternative."""
REFUSED_POOLING = {
    "extra_kwargs": "no plugin of the engine reads more arguments; omit it",
    "requires_token_ids": "no pooler here reads ids; results include the prompt's; omit it",
}
GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy. Between it and MIN_TEMPERATURE they are raised, to keep logits finite."""
MIN_TEMPERATURE = 1e-2


class RequestOutputKind(Enum):
    """CUMULATIVE: each output holds everything so far. DELTA: only new tokens. FINAL_ONLY: one output, at the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingType(Enum):
    """GREEDY: the argmax. RANDOM: sampled. RANDOM_SEED: sampled, with the request's seed."""

    GREEDY = 0
    RANDOM = 1
    RANDOM_SEED = 2


class RepetitionDetectionParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """End a choice when its last tokens repeat one pattern. Checked when made: RequestError names the field."""

    max_pattern_size: int = 0
    """Tokens of the longest pattern. 0: no detection."""
    min_pattern_size: int = 0
    """Tokens of the shortest. 0: one."""
    min_count: int = 0
    """Consecutive repetitions of a pattern: 2 or more."""

    def __post_init__(self) -> None:
        _int("max_pattern_size", self.max_pattern_size, 0, 1024)
        _int("min_pattern_size", self.min_pattern_size, 0, 1024)
        if not self.max_pattern_size:
            return
        _int("min_count", self.min_count, 2, 2**20)
        if self.min_pattern_size > self.max_pattern_size:
            raise RequestError("min_pattern_size must not exceed max_pattern_size", "min_pattern_size")

    def found(self, tokens: list[int]) -> bool:
        """Do the tokens end with such a pattern?"""
        for size in range(max(1, self.min_pattern_size), self.max_pattern_size + 1):
            span = size * self.min_count
            if span > len(tokens):
                return False
            # Equal to itself, moved by the pattern's size: the last token first, which mostly settles it.
            if tokens[-1] == tokens[-1 - size] and tokens[-span:-size] == tokens[-span + size :]:
                return True
        return False


class ReasoningDelimiters(msgspec.Struct, kw_only=True):
    """Text before the answer, such as reasoning."""

    opens: list[str]
    """The opening texts. One must be the first of the text."""
    close: str
    """The closing text."""
    inside: bool = False
    """The prompt has opened it."""


class GrammarPart(msgspec.Struct, frozen=True):
    """A schema that forms a part of a grammar, as the client sent it."""

    field: str
    """The request's field."""
    name: str
    """Its name in messages. It begins with the field."""
    schema: dict[str, Any]


class StructuredOutputsParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The constraint on the text: one of json, regex, choice, grammar, json_object and structural_tag.
    docs/structured-output.md. Checked when made, as far as possible without compiling: RequestError names the field."""

    json: str | dict[str, Any] | bool | None = None
    """A JSON schema, as text or as an object."""
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    """EBNF (`root ::= ...`) or Lark."""
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    free_until: list[int] | None = None
    """Token ids. Text is unconstrained up to and including the first occurrence of any id, and constrained after it."""
    asked_as: str = ""
    """The client's name for it, in messages."""
    parts: list[GrammarPart] = msgspec.field(default_factory=list)
    """Schemas in a Lark grammar, to name the wrong one."""
    inner: StructuredOutputsParams | None = None
    """The value of `@inner` in a Lark grammar."""

    def __post_init__(self) -> None:
        where = self.asked_as or "structured_outputs"
        if self.json_object is False:
            self.json_object = None
        given = [k for k in KINDS if getattr(self, k) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise RequestError(f"{where}: needs one of {', '.join(KINDS)}, not {found}", where)
        for name in ("regex", "grammar", "whitespace_pattern"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise RequestError(f"{where}: {name} must be text, and not empty", where)
        for name in ("json", "structural_tag"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str | dict | bool):
                raise RequestError(f"{where}: {name} must be an object, or its text", where)
        if self.choice is not None:
            if not isinstance(self.choice, list) or not self.choice:
                raise RequestError(f"{where}: choice must be a list of at least one text", where)
            _strings(where, self.choice, MAX_LIST)
        if isinstance(self.inner, dict):
            self.inner = StructuredOutputsParams(**self.inner)
        if self.inner is not None and self.grammar is None:
            raise RequestError(f"{where}: inner requires grammar; omit it", where)
        for i in self.free_until or ():
            _int("free_until", i, 0, 2**31 - 1)

    @property
    def constraint(self) -> tuple[Kind, Any]:
        """Its kind, and its value."""
        return next((k, getattr(self, k)) for k in KINDS if getattr(self, k) is not None)  # type: ignore[return-value]


class Range(msgspec.Struct, frozen=True):
    """The allowed values of a number of SamplingParams, and its readers. Declared at the field."""

    low: float
    high: float
    open_low: bool = False
    """`low` itself is rejected."""
    sampler: bool = False
    """The sampler or its penalties read it: TokenSampling has a field of the same name and meaning."""
    of_model: bool = False
    """A model's generation_config.json may set its default."""
    help: str = ""
    """Help text for the flags of commands that sample."""


class NumberField(msgspec.Struct, frozen=True):
    """A number of SamplingParams, from its declaration."""

    name: str
    kind: type
    """int or float."""
    optional: bool
    """None is a value."""
    range: Range


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """See docs/sampling.md for the order in which these apply. Checked when made: RequestError names the field."""

    n: Annotated[int, Range(1, MAX_N)] = 1
    temperature: Annotated[float, Range(0, 1e6, sampler=True, of_model=True, help="randomness; 0 is greedy")] = 1.0
    top_p: Annotated[float, Range(0, 1, open_low=True, sampler=True, of_model=True, help="nucleus mass")] = 1.0
    top_k: Annotated[
        int, Range(-1, 2**31 - 1, sampler=True, of_model=True, help="keep the k most likely tokens; 0 keeps all")
    ] = 0
    min_p: Annotated[float, Range(0, 1, sampler=True, of_model=True, help="probability floor relative to the best token")] = 0.0
    presence_penalty: Annotated[float, Range(-2, 2, sampler=True, help="penalty once a token has appeared")] = 0.0
    frequency_penalty: Annotated[float, Range(-2, 2, sampler=True, help="penalty per appearance")] = 0.0
    repetition_penalty: Annotated[
        float, Range(0, 1e6, open_low=True, sampler=True, of_model=True, help="multiplicative penalty for seen tokens")
    ] = 1.0
    seed: Annotated[int | None, Range(-(2**63), 2**63 - 1)] = None
    stop: list[str] | str | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: Annotated[int | None, Range(1, 2**31 - 1)] = 16
    min_tokens: Annotated[int, Range(0, 2**31 - 1)] = 0
    logprobs: Annotated[int | None, Range(-1, 2**31 - 1)] = None
    prompt_logprobs: Annotated[int | None, Range(-1, 2**31 - 1)] = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    structured_outputs: StructuredOutputsParams | None = None
    marked_token_ids: list[int] | None = None
    """Tokens that become marks in the text (thalweg.text.marks), for parsers of turns, with any setting of
    skip_special_tokens."""
    stop_aside: ReasoningDelimiters | None = None
    """Text in which stop strings do not count. Its delimiters may hold marks."""
    flat_logprobs: bool = False
    """Outputs have their logprobs as `FlatLogprobs`, which use less memory."""
    repetition_detection: RepetitionDetectionParams | None = None
    skip_clone: bool = False
    """Parameters are never changed here, so they need no copy."""
    thinking_token_budget: Annotated[int | None, Range(0, 2**31 - 1)] = None
    """Most tokens of reasoning, after which its end is written (EngineArgs.reasoning_config)."""
    kv_transfer_params: dict[str, Any] | None = None
    """Hand over of the prompt's KV blocks through a store that engines share (docs/fleets.md). {"do_remote_decode": True}:
    another engine continues. {"do_remote_prefill": True}: another engine has begun."""
    cache_hit_threshold: Annotated[float | None, Range(0, 1)] = None
    """Least share of the prompt that must be cached when it starts. Otherwise it ends with finish_reason "cache_threshold"."""
    cache_retention: Annotated[float | None, Range(0, 86400)] = None
    """Seconds for which the KV blocks of prompt and output are kept after the end, while there are others to evict. At most
    EngineArgs.max_cache_retention."""
    disable_spec_decode: bool = False
    """No step computes drafts of this request. Its text is the same."""
    logprob_token_ids: list[int] | None = None
    routed_experts_prompt_start: int | None = None
    """These two are known and rejected (REFUSED_PARAMS)."""
    extra_args: dict[str, Any] | None = None
    """Arguments of features of installed packages (docs/adding-a-feature.md). An unknown one is rejected."""

    def __post_init__(self) -> None:
        if not isinstance(self.stop, str | list | tuple | None):
            raise RequestError(f"stop must be a string or a list of strings, not {self.stop!r:.80}", "stop")
        self.stop = [self.stop] if isinstance(self.stop, str) else list(self.stop or [])
        if self.seed == -1:
            self.seed = None
        for name, why in REFUSED_PARAMS.items():
            if getattr(self, name) is not None:
                raise RequestError(f"{name}: {why}", name)
        if isinstance(self.repetition_detection, dict):
            self.repetition_detection = RepetitionDetectionParams(**self.repetition_detection)
        self._check_numbers()
        self._check_flags()
        self._check_lists()
        self._check_transfer()
        if self.temperature < GREEDY_BELOW:
            self.temperature, self.top_p, self.top_k, self.min_p = 0.0, 1.0, 0, 0.0
        elif self.temperature < MIN_TEMPERATURE:
            self.temperature = MIN_TEMPERATURE
        if self.top_k == -1:
            self.top_k = 0
        if self.logit_bias:
            self.logit_bias = {int(k): max(-100.0, min(100.0, v)) for k, v in self.logit_bias.items()}

    def _check_numbers(self) -> None:
        for field in NUMBERS.values():
            value, bound = getattr(self, field.name), field.range
            if value is None and field.optional:
                continue
            if field.kind is int:
                _int(field.name, value, int(bound.low), int(bound.high))
            else:
                _float(field.name, value, bound.low, bound.high, bound.open_low)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})", "min_tokens")

    def _check_flags(self) -> None:
        for name in FLAGS:
            if (value := getattr(self, name)) not in (True, False, None):
                raise RequestError(f"{name} must be true or false, not {value!r:.80}", name)

    def _check_lists(self) -> None:
        assert isinstance(self.stop, list)
        _strings("stop", self.stop, MAX_STOP)
        _strings("bad_words", self.bad_words or [], MAX_LIST)
        _budget("stop", self.stop, MAX_STOP_CHARS)
        _budget("bad_words", self.bad_words or [], MAX_BAD_CHARS)
        if self.stop and not self.detokenize:
            raise RequestError("stop strings need detokenize=True; use stop_token_ids instead", "stop")
        for name in ("stop_token_ids", "allowed_token_ids", "marked_token_ids"):
            ids = getattr(self, name)
            if ids is None:
                continue
            if not isinstance(ids, list) or len(ids) > MAX_LIST:
                raise RequestError(f"{name} must be a list of at most {MAX_LIST} token ids", name)
            for i in ids:
                _int(name, i, 0, 2**31 - 1)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError("allowed_token_ids must not be empty; omit it to allow every token", "allowed_token_ids")
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, dict) or len(self.logit_bias) > MAX_LIST:
                raise RequestError(f"logit_bias must map at most {MAX_LIST} token ids to numbers", "logit_bias")
            for k, v in self.logit_bias.items():
                if not str(k).isdecimal():
                    raise RequestError(f"logit_bias: key {k!r} is not a token id", "logit_bias")
                if isinstance(v, bool) or not isinstance(v, int | float) or math.isnan(v):
                    raise RequestError(f"logit_bias: the value of token {k} must be a number, not {v!r}", "logit_bias")

        requested = self.structured_outputs
        if isinstance(requested, dict):
            self.structured_outputs = StructuredOutputsParams(**requested)
        elif requested is not None and not isinstance(requested, StructuredOutputsParams):
            raise RequestError("structured_outputs must be a StructuredOutputsParams", "structured_outputs")
        extra = {} if self.extra_args is None else self.extra_args
        if not isinstance(extra, dict) or not all(isinstance(k, str) for k in extra):
            raise RequestError("extra_args must map names to values", "extra_args")

    def _check_transfer(self) -> None:
        """vLLM's clients write kv_transfer_params in extra_args."""
        name = "kv_transfer_params"
        if self.extra_args and name in self.extra_args:
            self.kv_transfer_params = self.extra_args[name]
            self.extra_args = {k: v for k, v in self.extra_args.items() if k != name} or None
        handover = self.kv_transfer_params
        if handover is None:
            return
        if not isinstance(handover, dict):
            raise RequestError(f"{name} must be an object, not {type(handover).__name__}", name)
        flags = [handover.get(key) or False for key in ("do_remote_decode", "do_remote_prefill")]
        if not all(isinstance(flag, bool) for flag in flags) or all(flags):
            raise RequestError(f"{name}: do_remote_decode and do_remote_prefill must be booleans, and not both true", name)

    @property
    def hands_over(self) -> bool:
        """Does another engine continue?"""
        return bool((self.kv_transfer_params or {}).get("do_remote_decode"))

    @property
    def takes_over(self) -> bool:
        """Has another engine begun?"""
        return bool((self.kv_transfer_params or {}).get("do_remote_prefill"))

    def clone(self) -> SamplingParams:
        return msgspec.structs.replace(self)

    @property
    def sampling_type(self) -> SamplingType:
        if self.temperature < GREEDY_BELOW:
            return SamplingType.GREEDY
        return SamplingType.RANDOM if self.seed is None else SamplingType.RANDOM_SEED

    @property
    def output_text_buffer_length(self) -> int:
        """Characters of text that may be held back, as a stop string could begin there."""
        if self.include_stop_str_in_output:
            return 0
        return max((len(s) - 1 for s in self.stop or ()), default=0)

    def update_from_tokenizer(self, tokenizer: Any) -> None:
        """RequestError for a bad word without tokens in this tokenizer. The engine encodes bad words with the model's own."""
        for word in self.bad_words or ():
            if not tokenizer.encode(word, add_special_tokens=False):
                raise RequestError(f"bad_words: {word!r:.80} encodes to no tokens", "bad_words")

    def update_from_generation_config(self, generation_config: Mapping[str, Any], eos_token_id: int | None = None) -> None:
        """Stop at the end tokens that a generation_config.json names in addition to `eos_token_id`, unless ignore_eos. The
        engine does so by itself for the model's own file."""
        named = generation_config.get("eos_token_id")
        ids = {named} if isinstance(named, int) else set(named or ())
        if not self.ignore_eos:
            self.stop_token_ids = sorted({*(self.stop_token_ids or ()), *(ids - {eos_token_id})})

    @staticmethod
    def from_optional(**fields: Any) -> SamplingParams:
        """From fields of which any may be None: the default."""
        return SamplingParams(**{k: v for k, v in fields.items() if v is not None})


def _read_numbers() -> dict[str, NumberField]:
    """The numbers of SamplingParams by name, in the order of their declaration."""
    found = {}
    for name, hint in get_type_hints(SamplingParams, include_extras=True).items():
        handover = next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Range)), None)
        if handover is None:
            continue
        kinds = get_args(hint.__origin__) or (hint.__origin__,)
        kind = next(k for k in kinds if k is not type(None))
        found[name] = NumberField(name, kind, type(None) in kinds, handover)
    return found


NUMBERS = _read_numbers()
"""The one table of SamplingParams' numbers, for all other readers of such a field."""
SAMPLER = tuple(f.name for f in NUMBERS.values() if f.range.sampler)
"""Fields that reach the sampler under their own name."""
OF_MODEL = tuple(f.name for f in NUMBERS.values() if f.range.of_model)
"""Fields that a model's generation_config.json may set."""


def _int(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be an integer, not {value!r}", name)
    if not low <= value <= high:
        raise RequestError(f"{name} must be between {low} and {high}, not {value}", name)


def _float(name: str, value: Any, low: float, high: float, open_low: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} must be a number, not {value!r}", name)
    if not (low < value if open_low else low <= value) or not value <= high:
        raise RequestError(f"{name} must be in {'(' if open_low else '['}{low:g}, {high:g}], not {value}", name)


def _strings(name: str, values: Any, most: int) -> None:
    if not isinstance(values, list) or len(values) > most:
        raise RequestError(f"{name} must be a string or a list of at most {most} strings", name)
    for v in values:
        if not isinstance(v, str) or not v:
            raise RequestError(f"{name} must hold non-empty strings, not {v!r}", name)


def _budget(name: str, values: list[str], most: int) -> None:
    """The number of entries of a list does not bound the work."""
    size = sum(map(len, values))
    if size > most:
        raise RequestError(f"{name}: {size} characters together; the limit is {most}; send fewer or shorter ones", name)


class BeamSearchParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Parameters of `LLM.beam_search`. Checked when made: RequestError names the field."""

    beam_width: int
    """Sequences kept in each round, and returned."""
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    """Samples nothing: beams are ranked by the log-probabilities of logprobs_mode."""
    length_penalty: float = 1.0
    """Sums of log-probabilities are divided by the length to this power. 0: not at all."""
    include_stop_str_in_output: bool = False
    """Keep the end token of a finished beam."""

    def __post_init__(self) -> None:
        _int("beam_width", self.beam_width, 1, 1024)
        _int("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _float("temperature", self.temperature, 0, 1e6)
        _float("length_penalty", self.length_penalty, -1e3, 1e3)


TOKEN_TASKS = ("token_embed", "token_classify")
"""A result per token."""
POOLING_TASKS = ("embed", "classify", "score", *TOKEN_TASKS)


LATE_MODES = ("cache_query", "score_doc")


class LateInteractionParams(msgspec.Struct, omit_defaults=True):
    """Late interaction over several requests: the vectors of one request, a query, are kept, and others are scored against
    it. Checked when made: RequestError names the field."""

    mode: str
    """cache_query: keep the vectors, and return a zero. score_doc: return MaxSim with the kept vectors."""
    query_key: str
    """The key of the kept query. Send documents when it has been answered."""
    query_uses: int | None = None
    """Documents for which it is kept. None: one."""

    def __post_init__(self) -> None:
        if self.mode not in LATE_MODES:
            raise RequestError(f"mode must be one of {', '.join(LATE_MODES)}, not {self.mode!r:.80}", "mode")
        if not isinstance(self.query_key, str) or not 1 <= len(self.query_key) <= MAX_STOP_CHARS:
            raise RequestError(f"query_key must be text of 1 to {MAX_STOP_CHARS} characters", "query_key")
        if self.query_uses is not None:
            _int("query_uses", self.query_uses, 1, 2**31 - 1)


class PoolingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The parameters of one vector, or of one text's classes. Checked when made: RequestError names the field."""

    use_activation: bool | None = None
    """Vectors: divide by the length. Classes: probabilities instead of logits. None: as the model's files say."""
    dimensions: int | None = None
    """Cut the vector to so many values, where the model was trained for that. None: all."""
    task: str | None = None
    """One of POOLING_TASKS. None: the model's default."""
    skip_reading_prefix_cache: bool | None = None
    output_kind: RequestOutputKind = RequestOutputKind.FINAL_ONLY
    """There is one output: no other value is accepted."""
    step_tag_id: int | None = None
    """Results per token: only those of tokens with this id. None: as the model's files say, else all."""
    returned_token_ids: list[int] | None = None
    """Results per token: these columns, in this order. None: all."""
    late_interaction_params: LateInteractionParams | None = None
    extra_kwargs: dict[str, Any] | None = None
    requires_token_ids: bool = False
    """These two are known and rejected (REFUSED_POOLING)."""

    def __post_init__(self) -> None:
        for name, why in REFUSED_POOLING.items():
            if getattr(self, name):
                raise RequestError(f"{name}: {why}", name)
        if self.output_kind is not RequestOutputKind.FINAL_ONLY:
            raise RequestError("output_kind: a pooling request has one output; omit it", "output_kind")
        for name in ("use_activation", "skip_reading_prefix_cache"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise RequestError(f"{name} must be true or false, not {value!r}", name)
        if self.dimensions is not None:
            _int("dimensions", self.dimensions, 1, 2**31 - 1)
        late = self.late_interaction_params
        if late is not None and not isinstance(late, LateInteractionParams):
            name = "late_interaction_params"
            raise RequestError(f"{name} must be LateInteractionParams, not {type(late).__name__}", name)
        if self.step_tag_id is not None:
            _int("step_tag_id", self.step_tag_id, 0, 2**31 - 1)
        if self.returned_token_ids is not None:
            ids = self.returned_token_ids
            if not isinstance(ids, list) or not 1 <= len(ids) <= MAX_LIST:
                raise RequestError(f"returned_token_ids must be a list of 1 to {MAX_LIST} integers", "returned_token_ids")
            for i in ids:
                _int("returned_token_ids", i, 0, 2**31 - 1)
        if self.task is not None and self.task not in POOLING_TASKS:
            raise RequestError(f"task: {self.task!r:.80} is not supported; this version has {', '.join(POOLING_TASKS)}", "task")

    def clone(self) -> PoolingParams:
        return msgspec.structs.replace(self)
