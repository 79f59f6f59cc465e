"""A stand-in for AsyncLLM with arithmetic anyone can do by hand: token k of an answer follows from the prompt and k alone.

The vocabulary is the 256 bytes plus an end token, so text and tokens correspond one to one. Follows the interface of
thalweg.async_llm.AsyncLLM; tests that hold here should hold with the real one where they do not name tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

from thalweg.config import CacheConfig, DeviceConfig, EngineConfig, ModelConfig, SchedulerConfig
from thalweg.engine.messages import Stats
from thalweg.errors import EngineDeadError, RequestError
from thalweg.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from thalweg.params import RequestOutputKind, SamplingParams
from thalweg.template.chat import Chat

EOS = 256
LETTERS = b"abcdefghijklmnopqrstuvwxyz "
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


class ByteTokenizer:
    vocab_size = 257
    eos_ids = (EOS,)
    bos_id = None
    special_ids = frozenset((EOS,))
    special_tokens: dict[str, str] = {}
    special_texts = ()
    added_tokens: dict[int, str] = {}
    response_template = None
    config: dict[str, Any] = {}
    max_token_chars = 1

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def encode_with_data(self, text: str, data: object, add_special_tokens: bool = True) -> list[int]:
        return self.encode(text)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace") + (
            "" if skip_special_tokens else "<eos>" * (EOS in ids)
        )

    def bytes_of(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b"<eos>"

    def name_of(self, token: int) -> str:
        return self.bytes_of(token).decode(errors="replace")

    token_of = name_of


def config(policy: str = "fcfs", max_len: int = 256) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(
            path="fake", architecture="Fake", dtype="float32", max_len=max_len, vocab=257, seed=0, load_format="auto",
            logprobs_mode="raw_logprobs", max_logprobs=20,
        ),
        device=DeviceConfig(platform="fake"),
        cache=CacheConfig(block_tokens=16, groups=(), blocks=(64,)),
        scheduler=SchedulerConfig(max_seqs=8, token_budget=64, policy=policy),
    )  # fmt: skip


def token_at(prompt: list[int], index: int, k: int, seed: int | None) -> int:
    """The k-th token of choice `index`: a letter that depends on the prompt's sum, the choice and the seed."""
    return LETTERS[(sum(prompt) + 7 * index + 3 * k + (seed or 0)) % len(LETTERS)]


class FakeEngine:
    """delay: seconds per token. Prompts that contain "!fail" end in an error after two tokens; "!dead" kills the engine."""

    def __init__(
        self,
        *,
        delay: float = 0.0,
        policy: str = "fcfs",
        names: tuple[str, ...] = ("fake", "alias"),
        template: str | None = TEMPLATE,
    ) -> None:
        self.config = config(policy)
        self.tokenizer: ByteTokenizer | None = ByteTokenizer()
        self.chat = Chat(self.tokenizer, template)
        self.media: Any = None
        self.default_sampling: dict[str, Any] = {}
        self.model_names = list(names)
        self.delay = delay
        self.held = False
        """No token is made until this is False again."""
        self.loggers: tuple[Any, ...] = ()
        self.dead = False
        self.running: dict[str, SamplingParams] = {}
        self.most_running = 0
        """Choices under way at once, at most so far."""
        self.aborted: list[str] = []
        self.told_to_end: set[str] = set()
        self.prompts: list[Any] = []
        self.priorities: list[int] = []
        self.made = 0

    async def prepare(self, params: SamplingParams) -> None:
        """Grammars are judged by a real engine's side; this one has an opinion on one of them."""
        asked = params.structured_outputs
        if asked is not None and asked.constraint == ("regex", "("):
            field = asked.asked_as or "structured_outputs.regex"
            raise RequestError(f"{field}: an opening parenthesis alone", field)

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        first_choice: int = 0,
        seat: Any = None,
        lora_request: Any = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        ids = list(prompt["prompt_token_ids"])
        named = "prompt_token_ids" if prompt.get("prompt") is None else "prompt"
        if self.dead:
            raise EngineDeadError("dead /secret/path")
        if not ids:
            raise RequestError(f"{named} is empty", named)
        if len(ids) >= self.config.model.max_len:
            raise RequestError(f"prompt has {len(ids)} tokens; the context is {self.config.model.max_len}", "prompt")
        if sampling_params.logprobs is not None and sampling_params.logprobs > 20:
            raise RequestError("logprobs: at most 20", "logprobs")
        if any(i > EOS for i in ids):
            raise RequestError("prompt_token_ids: token id out of range", "prompt_token_ids")
        assert request_id not in self.running, "ids must be unique"
        self.running[request_id] = sampling_params
        self.most_running = max(self.most_running, sum(p.n for p in self.running.values()))
        self.prompts.append(prompt)
        self.priorities.append(priority)
        done = False
        try:
            async for output in self._tokens(ids, sampling_params, request_id, first_choice):
                done = output.finished
                yield output
        finally:
            del self.running[request_id]
            if not done:
                self.aborted.append(request_id)

    async def _tokens(
        self, ids: list[int], p: SamplingParams, request_id: str, first: int
    ) -> AsyncGenerator[RequestOutput, None]:
        limit = min(p.max_tokens or 10**9, self.config.model.max_len - len(ids))
        kept: list[list[int]] = [[] for _ in range(p.n)]
        texts = [""] * p.n
        ended: list[tuple[str, int | str | None] | None] = [None] * p.n
        text = self.tokenizer.decode(ids) if self.tokenizer else ""
        for k in range(limit):
            await asyncio.sleep(self.delay)
            while self.held and request_id not in self.told_to_end:
                await asyncio.sleep(0.005)
            if "!dead" in text and k == 2:
                self.dead = True
                raise EngineDeadError("dead at /secret/path")
            failed = "!fail" in text and k == 2
            news = []
            for i in range(p.n):
                if ended[i]:
                    continue
                token = p.allowed_token_ids[0] if p.allowed_token_ids else token_at(ids, first + i, k, p.seed)
                kept[i].append(token)
                before = len(texts[i])
                texts[i] += chr(token)
                ended[i] = ("error", None) if failed else self._end(p, kept[i], texts[i], limit)
                if request_id in self.told_to_end:
                    ended[i] = ("abort", None)
                if ended[i] and isinstance(ended[i][1], str) and not p.include_stop_str_in_output:
                    texts[i] = texts[i][: texts[i].index(ended[i][1])]
                news.append(self._output(i, p, kept[i], texts[i], before, ended[i]))
            self.made += len(news)
            finished = all(ended)
            if p.output_kind is RequestOutputKind.DELTA or finished:
                if p.output_kind is not RequestOutputKind.DELTA:
                    news = [self._output(i, p, kept[i], texts[i], 0, ended[i], True) for i in range(p.n)]
                yield self._request(request_id, ids, p, news, finished, failed, sum(map(len, kept)))
            if finished:
                return

    def _end(self, p: SamplingParams, tokens: list[int], text: str, limit: int) -> tuple[str, int | str | None] | None:
        if tokens[-1] in (p.stop_token_ids or ()) and len(tokens) >= p.min_tokens:
            return "stop", tokens[-1]
        for stop in p.stop:
            if stop in text:
                return "stop", stop
        return ("length", None) if len(tokens) >= limit else None

    def _output(
        self, i: int, p: SamplingParams, tokens: list[int], text: str, before: int, end: Any, whole: bool = False
    ) -> CompletionOutput:
        new = tokens if whole else tokens[-1:]
        return CompletionOutput(
            index=i,
            text=text[before:],
            token_ids=list(new),
            logprobs=None if p.logprobs is None else [logprobs(t, p.logprobs) for t in new],
            finish_reason=end[0] if end else None,
            stop_reason=end[1] if end else None,
        )

    def _request(
        self,
        request_id: str,
        ids: list[int],
        p: SamplingParams,
        news: list[CompletionOutput],
        finished: bool,
        failed: bool,
        total: int,
    ) -> RequestOutput:
        scores = None if p.prompt_logprobs is None else [None, *(logprobs(t, p.prompt_logprobs) for t in ids[1:])]
        output = RequestOutput(
            request_id, None, ids, scores, news, finished,
            metrics=RequestMetrics(1.0, 1.0, 1.5, 2.0, 3.0, total, total // p.n), num_cached_tokens=3,
            error="it broke" if failed else None,
        )  # fmt: skip
        if finished:
            for logger in self.loggers:
                logger.record_request(output, p)
        return output

    restarts = paused_requests = sleep_level = weights_version = 0

    def progress(self, request_id: str) -> RequestMetrics | None:
        """Every request that runs has got as far."""
        return RequestMetrics(1.0, 1.0, 1.5) if request_id in self.running else None

    async def abort(self, request_id: str | Iterable[str]) -> None:
        self.told_to_end.update([request_id] if isinstance(request_id, str) else request_id)

    @property
    def ready(self) -> bool:
        return self.state == "ready"

    @property
    def state(self) -> str:
        return "failed" if self.dead else "ready"

    async def check_health(self) -> None:
        if self.dead:
            raise EngineDeadError("dead")

    def stats(self) -> Stats | None:
        return Stats(len(self.running), 0, 0, 64, 0, 0, 0, 0, 0, self.made)

    def stats_by_engine(self) -> dict[int, Stats]:
        return {}

    def ranks_by_engine(self) -> dict[int, Any]:
        return {}

    def on_resized(self, call: Callable[[], None]) -> None:
        """Its size is fixed."""

    async def is_scaling_elastic_ep(self) -> bool:
        return False

    async def shutdown(self) -> None:
        self.dead = True


def logprobs(token: int, k: int) -> dict[int, Logprob]:
    """The chosen token first, with rank 2; then the k best, of which it is one when k > 1. The first byte is not UTF-8."""
    best = [0xC3, token, *(t for t in range(65, 90) if t != token)][:k]
    values = {t: Logprob(-0.5 - r, r + 1, ByteTokenizer().name_of(t)) for r, t in enumerate(best)}
    return {token: Logprob(-1.5, 2, ByteTokenizer().name_of(token)), **values}
