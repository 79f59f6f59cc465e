"""From tokens to outputs of callers: text, stop strings, logprobs, finish reasons. Keeps the state of every open request.

One `process` call per frame of the engine. The common case is one token for each of hundreds of sequences, so the work per
token is a few dictionary look-ups. Knows no transport, no scheduling, no device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from thalweg.engine.client.submission import Submission
from thalweg.engine.client.transcription import ALIGNMENT, STATES
from thalweg.engine.messages import (
    EngineRequest,
    Outputs,
    PromptScores,
    SequenceFinished,
    SequenceStarted,
    TokenLogprobs,
    TokenVectors,
)
from thalweg.outputs import (
    CompletionOutput,
    FlatLogprobs,
    Logprob,
    PositionLogprobs,
    PromptStates,
    RequestMetrics,
    RequestOutput,
)
from thalweg.params import RequestOutputKind
from thalweg.text.detokenizer import Detokenizer
from thalweg.text.stops import ReasoningStream, StopStream, StopStrings, automaton
from thalweg.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ProcessedFrame:
    """The result of one frame: one output per request with new tokens, and handles the engine must stop because a stop string
    matched."""

    outputs: list[RequestOutput]
    abort: list[int]


class OutputProcessor:
    """All open requests of one engine. Not thread-safe: the reader of frames drives it."""

    def __init__(self, tokenizer: Tokenizer | None, interval: int = 1) -> None:
        """tokenizer None: texts stay empty. interval: tokens per output, for requests that receive deltas."""
        self._tokenizer, self._interval = tokenizer, interval
        self._requests: dict[str, _Request] = {}
        self._choices: dict[int, _Choice] = {}

    @property
    def open_requests(self) -> int:
        return len(self._requests)

    def open_ids(self) -> list[str]:
        """Oldest first."""
        return list(self._requests)

    def metrics(self, request_id: str) -> RequestMetrics | None:
        """The metrics of an open request, so far. None: it is not open."""
        request = self._requests.get(request_id)
        return None if request is None else request.metrics

    def scheduled_ts(self, request_id: str) -> float | None:
        """Monotonic seconds when the engine began this request, since it was submitted, last resumed, or last preempted there.
        None: it has not, or the request is not open."""
        request = self._requests.get(request_id)
        return None if request is None else request.begun

    def first_token(self, request_id: str) -> float | None:
        """Monotonic seconds of the first token since then. None: there is none."""
        request = self._requests.get(request_id)
        return None if request is None else request.first_token

    def add(self, submission: Submission, now: float) -> None:
        """Before its EngineRequests reach the engine. now: monotonic seconds. ValueError if the id is open already."""
        if submission.request_id in self._requests:
            raise ValueError(f"request {submission.request_id!r} is already open")
        request = _Request(submission, self._tokenizer, now, self._interval)
        self._requests[submission.request_id] = request
        for choice in request.choices:
            self._choices[choice.handle] = choice

    def process(self, frame: Outputs) -> ProcessedFrame:
        """Process one frame. Tokens and events of closed handles (stopped, aborted) are dropped."""
        choices = self._choices
        for started in frame.started:
            if started.handle in choices:
                choices[started.handle].request.start(choices[started.handle], started)
        for scores in frame.prompt_scores:
            if scores.handle in choices:
                choices[scores.handle].request.score(scores, self._tokenizer)
        for part in frame.each:
            if part.handle in choices:
                choices[part.handle].request.align(part)
        for handle in frame.preempted:
            if handle in choices:
                choices[handle].request.preempt()
        finished = {f.handle: f for f in frame.finished}
        for f in frame.finished:
            if f.handle in choices:
                metrics = choices[f.handle].request.metrics
                metrics.num_prefill_chunks += f.chunks
                metrics.draft_rounds += f.rounds
        logprobs = _Rows(frame.logprobs) if frame.logprobs is not None else None
        abort: list[int] = []
        touched: dict[str, _Request] = {}
        for i, (handle, token) in enumerate(zip(frame.handles.tolist(), frame.tokens.tolist(), strict=True)):
            choice = choices.get(handle)
            if choice is None:
                continue
            if choice.wants_logprobs and logprobs is not None:
                choice.log(*logprobs.of(i, 1 + choice.engine_request.sampling.logprobs), self._tokenizer)
            end = finished.get(handle)
            if frame.frames is not None:
                choice.frames.append(frame.frames[i])
            choice.push(token, end is not None and end.reason == "stop")
            touched[choice.request.id] = choice.request
            if choice.finish_reason is not None:  # a stop string
                del choices[handle]
                if end is None:
                    abort.append(handle)
        for end in frame.finished:
            choice = choices.pop(end.handle, None)
            if choice is not None:
                choice.finish(end)
                touched[choice.request.id] = choice.request
        outputs = []
        for request in touched.values():
            output = request.output(frame.time)
            if request.is_finished:
                del self._requests[request.id]
            if output is not None:
                outputs.append(output)
        return ProcessedFrame(outputs, abort)

    def abort(self, request_id: str) -> tuple[list[int], RequestOutput | None]:
        """Close a request: handles the engine must stop, and its last output, with finish_reason "abort". ([], None) if
        it is not open."""
        return self._close(request_id, "abort", "")

    def fail_all(self, message: str) -> list[RequestOutput]:
        """Close every request with finish_reason "error": the engine is gone. message: words a client may see."""
        closed = [self._close(i, "error", message)[1] for i in list(self._requests)]
        return [o for o in closed if o is not None]

    def open_handles(self) -> list[int]:
        """Every open choice, oldest first."""
        return list(self._choices)

    def resubmit(self, handles: Sequence[int] | None = None) -> list[EngineRequest]:
        """Requests with which a fresh engine continues these choices (None: every open one): prompt + emitted tokens, same
        seed, same handle. Closed handles are skipped."""
        wanted = self._choices if handles is None else [h for h in handles if h in self._choices]
        return [self._choices[h].resubmit() for h in wanted]

    def suspend(self, request_id: str, handles: Iterator[int]) -> list[int]:
        """Take a request's running choices from the engine: the handles it must stop. Outputs still to come are dropped, and
        computed again after `resume`, under new handles."""
        request, stopped = self._requests.get(request_id), []
        if request is not None:
            request.begun = request.first_token = None
        for choice in request.choices if request is not None else ():
            if self._choices.pop(choice.handle, None) is not None:
                stopped.append(choice.handle)
                choice.handle = next(handles)
                choice.engine_request = msgspec.structs.replace(choice.engine_request, handle=choice.handle)
        return stopped

    def resume(self, request_id: str) -> list[EngineRequest]:
        """Requests with which the engine continues a suspended request."""
        request, again = self._requests.get(request_id), []
        for choice in request.choices if request is not None else ():
            if choice.finish_reason is None and choice.handle not in self._choices:
                self._choices[choice.handle] = choice
                again.append(choice.resubmit())
        return again

    def fail(self, handle: int, message: str) -> tuple[str, list[int]] | None:
        """Close the request this choice belongs to: its id, and the handles of its other open choices."""
        choice = self._choices.get(handle)
        if choice is None:
            return None
        handles, _ = self._close(choice.request.id, "error", message)
        return choice.request.id, [h for h in handles if h != handle]

    def _close(self, request_id: str, reason: str, error: str) -> tuple[list[int], RequestOutput | None]:
        request = self._requests.pop(request_id, None)
        if request is None:
            return [], None
        handles = []
        for choice in request.choices:
            if self._choices.pop(choice.handle, None) is not None:
                handles.append(choice.handle)
            if choice.finish_reason is None:
                choice.finish(SequenceFinished(choice.handle, reason, error=error))
        return handles, request.output(request.metrics.last_token_ts)


class _Choice:
    """One sequence: everything emitted so far, and the part that its caller has received."""

    __slots__ = (
        "_after_min", "_aside", "_detokenizer", "_include", "_new_text", "_repeats", "_sent_tokens", "_stop_ids", "_stops",
        "_text", "_told_end",
        "cumulative_logprob", "engine_request", "finish_reason", "frames", "handle", "index", "logprobs", "request",
        "stop_reason", "tokens", "wants_logprobs",
    )  # fmt: skip

    def __init__(
        self, request: _Request, engine_request: EngineRequest, index: int, stops: StopStrings | None, tok: Tokenizer | None
    ) -> None:
        p, sampling = request.params, engine_request.sampling
        self.request, self.engine_request, self.index, self.handle = request, engine_request, index, engine_request.handle
        self._detokenizer: Detokenizer | None = None
        if tok is not None and p.detokenize:
            self._detokenizer = Detokenizer(
                tok, request.submission.context_ids, p.skip_special_tokens, p.spaces_between_special_tokens,
                p.marked_token_ids or (),
            )  # fmt: skip
        self._stops = StopStream(stops, p.include_stop_str_in_output) if stops is not None else None
        aside = p.stop_aside if stops is not None else None
        self._aside = ReasoningStream(aside.opens, aside.close, aside.inside) if aside is not None else None
        self._include, self._after_min = p.include_stop_str_in_output, p.min_tokens
        self._repeats = p.repetition_detection
        self._stop_ids = frozenset(sampling.eos_ids) | frozenset(sampling.stop_ids)
        self.tokens: list[int] = []
        self.frames: list[np.ndarray] = []
        """Of each token, where tokens are frames."""
        self._text, self._new_text = "", list[str]()
        self.wants_logprobs = sampling.logprobs >= 0
        self.logprobs: list[PositionLogprobs] = []
        self.cumulative_logprob = 0.0
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self._sent_tokens = 0
        self._told_end = False

    def log(self, ids: list[int], values: list[float], rank: int, tokenizer: Tokenizer | None) -> None:
        entry = _position(ids, values, rank, tokenizer if self.request.params.detokenize else None)
        self.cumulative_logprob += next(iter(entry.values())).logprob
        self.logprobs.append(entry)

    def push(self, token: int, stopping: bool) -> None:
        """One new token. stopping: the engine ended the sequence by a stop token in this frame."""
        self.tokens.append(token)
        if self.engine_request.hand_over:  # its end comes later than the token
            stopping = token in self._stop_ids and len(self.tokens) >= self._after_min
        self.request.made += 1
        if self._repeats is not None and not stopping and self._repeats.found(self.tokens):
            self._push_text(token, stopping)
            if self.finish_reason is None:
                self.finish(SequenceFinished(self.handle, "repetition"))
                self.stop_reason = "repetition_detected"
            return
        self._push_text(token, stopping)

    def _push_text(self, token: int, stopping: bool) -> None:
        if self._detokenizer is None or (stopping and not self._include and token in self._stop_ids):
            return
        text = self._detokenizer.push_one(token)
        if self._stops is not None and text:
            before, text = self._aside.push(text) if self._aside is not None else ("", text)
            if before:
                self._new_text.append(before)
            text = self._stops.push(text, len(self.tokens) > self._after_min) if text else ""
            if self._stops.matched is not None:
                self.finish_reason, self.stop_reason = "stop", self._stops.matched
                self.request.running -= 1
        if text:
            self._new_text.append(text)

    def finish(self, end: SequenceFinished) -> None:
        """The engine ended it, or never will: release text held back for stop strings."""
        self.finish_reason = end.reason
        self.request.running -= 1
        self.stop_reason = end.stop_id if end.reason == "stop" and end.stop_id >= 0 else None
        if end.error:
            self.request.error = end.error
        rest = self._detokenizer.finish() if self._detokenizer is not None else ""
        if self._stops is not None:
            before, rest = self._aside.push(rest) if self._aside is not None else ("", rest)
            held = self._aside.finish() if self._aside is not None else ""
            rest = before + self._stops.push(rest + held, False) + self._stops.finish()
        self._new_text.append(rest)

    def resubmit(self) -> EngineRequest:
        first = self.engine_request
        sampling = first.sampling
        if sampling.prompt_logprobs >= 0 and self.request.has_prompt_logprobs:
            sampling = msgspec.structs.replace(sampling, prompt_logprobs=-1)
        tokens = np.concatenate([first.tokens[: first.prompt_len], np.array(self.tokens, np.int32)])
        frames = np.stack(self.frames) if self.frames else None
        return msgspec.structs.replace(first, tokens=tokens, sampling=sampling, frames=frames)

    def has_news(self) -> bool:
        return self._sent_tokens < len(self.tokens) or (self.finish_reason is not None and not self._told_end)

    def output(self, delta: bool) -> CompletionOutput:
        """Everything so far, or the part not sent yet."""
        sent, text = self._sent_tokens, "".join(self._new_text)
        self._new_text.clear()
        logprobs: list[PositionLogprobs] | FlatLogprobs | None = None
        if self.wants_logprobs:
            logprobs = self.logprobs if delta else self.logprobs.copy()
            if self.request.params.flat_logprobs:
                logprobs = FlatLogprobs(logprobs)
            if delta:  # sent once, and never needed again
                self.logprobs = []
        if not delta:
            text = self._text = self._text + text
        self._sent_tokens = len(self.tokens)
        self._told_end = self.finish_reason is not None
        return CompletionOutput(
            self.index,
            text,
            self.tokens[sent:] if delta else self.tokens.copy(),
            self.cumulative_logprob if self.wants_logprobs else None,
            logprobs,
            self.finish_reason,
            self.stop_reason,
            frames=(self.frames[sent:] if delta else list(self.frames)) if self.frames else None,
        )


class _Request:
    """One submission and its choices."""

    __slots__ = (
        "_interval", "_kind", "_sent", "_told", "alignment", "begun", "cached_tokens", "choices", "error", "first_token",
        "id", "made", "metrics", "params", "prompt_logprobs", "running", "stored_tokens", "submission",
    )  # fmt: skip

    def __init__(self, submission: Submission, tokenizer: Tokenizer | None, now: float, interval: int = 1) -> None:
        self.submission, self.id, self.params = submission, submission.request_id, submission.params
        self._kind, self._interval, self._sent = self.params.output_kind, interval, 0
        stops = automaton(tuple(self.params.stop)) if self.params.stop and tokenizer is not None else None
        self.choices = [_Choice(self, r, i, stops, tokenizer) for i, r in enumerate(submission.requests)]
        self.running, self.made = len(self.choices), 0
        """Choices not finished, and tokens of all choices."""
        self.begun: float | None = None
        self.first_token: float | None = None
        """Monotonic seconds of its current stay at the engine: its begin, and its first token."""
        self._told = False
        self.metrics = RequestMetrics(arrival_time=now)
        self.cached_tokens: int | None = None
        self.stored_tokens = 0
        self.error: str | None = None
        self.alignment: np.ndarray | None = None
        self.prompt_logprobs: list[PositionLogprobs | None] | None = None
        if self.params.prompt_logprobs is not None:
            self.prompt_logprobs = [None] * len(submission.prompt_ids)

    @property
    def is_finished(self) -> bool:
        return self.running == 0

    @property
    def has_prompt_logprobs(self) -> bool:
        """Is every prompt token but the first scored?"""
        return self.prompt_logprobs is None or None not in self.prompt_logprobs[1:]

    def start(self, choice: _Choice, started: SequenceStarted) -> None:
        """Times and cache hits are those of the choice that ran first."""
        if self.begun is None:
            self.begun = started.scheduled_ts
        if self.cached_tokens is None:
            self.cached_tokens, self.stored_tokens = started.cached_tokens, started.stored_tokens
            self.metrics.queued_ts, self.metrics.scheduled_ts = started.queued_ts, started.scheduled_ts
            self.metrics.held = started.held

    def preempt(self) -> None:
        """The engine took a choice out. It runs again when the next token comes."""
        self.metrics.num_preemptions += 1
        self.begun = None

    def score(self, scores: PromptScores, tokenizer: Tokenizer | None) -> None:
        """Stored by position, so scores received twice (after a preemption) do no harm."""
        if self.prompt_logprobs is None:
            return
        keep = 1 + self.submission.requests[0].sampling.prompt_logprobs
        tok = tokenizer if self.params.detokenize else None
        for i, rank in enumerate(scores.ranks.tolist()):
            entry = _position(scores.tokens[i, :keep].tolist(), scores.values[i, :keep].tolist(), rank, tok)
            self.prompt_logprobs[scores.start + i] = entry

    def align(self, part: TokenVectors) -> None:
        """Weights of cross attention, or hidden states, stored by position as scores are. Without those of tokens before the
        first."""
        extra = self.params.extra_args or {}
        first = extra[ALIGNMENT if ALIGNMENT in extra else STATES]
        if self.alignment is None:
            self.alignment = np.zeros((len(self.submission.prompt_ids) - first, part.values.shape[1]), np.float32)
        self.alignment[part.start - first : part.start - first + len(part.values)] = part.values

    def output(self, time: float) -> RequestOutput | None:
        """The next output for the caller. None: its output_kind says to wait."""
        done, metrics = self.running == 0, self.metrics
        self.begun = time if self.begun is None else self.begun
        self.first_token = time if self.first_token is None else self.first_token
        if self.made > metrics.num_generation_tokens:
            metrics.first_token_ts = metrics.first_token_ts or time
            metrics.last_token_ts, metrics.num_generation_tokens = time, self.made
        if done:
            metrics.max_num_generation_tokens = max(len(c.tokens) for c in self.choices)
        elif self._kind is RequestOutputKind.FINAL_ONLY:
            return None
        delta = self._kind is RequestOutputKind.DELTA
        if delta and not done and self._told and self.made - self._sent < self._interval:
            return None
        reported, self._told, self._sent = self._told, True, self.made
        return RequestOutput(
            self.id,
            self.submission.prompt,
            self.submission.prompt_ids,
            None if delta and reported else self.prompt_logprobs,
            [c.output(delta) for c in self.choices if not delta or c.has_news()],
            done,
            metrics,
            self.cached_tokens,
            self.error,
            self.submission.lora_request,
            self.submission.handover if done and self._is_whole() else None,
            self.stored_tokens,
            None if self._returns_states else self.alignment,
            self._prompt_states(),
        )

    def _prompt_states(self) -> PromptStates | None:
        if not self._returns_states or self.alignment is None:
            return None
        inputs = self.submission.requests[0].inputs
        return PromptStates(self.alignment, [msgspec.structs.replace(item, data=(), vectors=None) for item in inputs])

    @property
    def _returns_states(self) -> bool:
        return STATES in (self.params.extra_args or {})

    def _is_whole(self) -> bool:
        """Did every choice end by itself?"""
        return all(c.finish_reason in ("stop", "length") for c in self.choices)


class _Rows:
    """The logprobs of a frame as Python lists: converted at once while rows are short, else on demand."""

    __slots__ = ("_ranks", "_row", "_tokens", "_values")

    def __init__(self, arrays: TokenLogprobs) -> None:
        self._row = {at: i for i, at in enumerate(arrays.rows.tolist())}
        self._ranks = arrays.ranks.tolist()
        short = arrays.tokens.shape[1] <= 64
        self._tokens: Any = arrays.tokens.tolist() if short else arrays.tokens
        self._values: Any = arrays.values.tolist() if short else arrays.values

    def of(self, at: int, keep: int) -> tuple[list[int], list[float], int]:
        """(ids, values, rank of the first) of token `at` of the frame."""
        row = self._row[at]
        ids, values = self._tokens[row][:keep], self._values[row][:keep]
        return (*((ids, values) if isinstance(ids, list) else (ids.tolist(), values.tolist())), self._ranks[row])


def _position(ids: list[int], values: list[float], rank: int, tokenizer: Tokenizer | None) -> dict[int, Logprob]:
    """The sampled token first, then the top tokens in order."""
    out: dict[int, Logprob] = {}
    for r, id in enumerate(ids):
        if id not in out:
            out[id] = Logprob(values[r], r or rank, None if tokenizer is None else tokenizer.name_of(id))
    return out
