"""Methods of AsyncLLM besides requests: its model, its state, and methods of vLLM that it lacks."""

from __future__ import annotations

import logging
from typing import Any

from thalweg.config import EngineConfig
from thalweg.engine.client.core import ClientCore
from thalweg.engine.client.fleet import Engines
from thalweg.engine.client.frontend import Frontend
from thalweg.engine.client.media import MediaPreprocessor
from thalweg.engine.client.process import RankHistory
from thalweg.engine.messages import Stats
from thalweg.errors import EngineDeadError, ThalwegError
from thalweg.media.speakers.base import Speaker
from thalweg.outputs import RequestMetrics
from thalweg.params import PoolingParams
from thalweg.refused import NoVllmConfig, unsupported_method
from thalweg.template.chat import Chat
from thalweg.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class InfoMethods(NoVllmConfig):
    """The read-only part of AsyncLLM."""

    _client: ClientCore
    _frontend: Frontend
    _supervisor: Engines
    _dead: ThalwegError | None
    _stats: Stats | None
    talker: Any
    """`AsyncLLM.talker`."""

    # ------------------------------------------------------------ the model

    @property
    def config(self) -> EngineConfig:
        """The configuration of the engine. AttributeError before it has started."""
        return self._client.config

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._frontend.tokenizer

    def get_tokenizer(self) -> Tokenizer:
        """ConfigError if the tokenizer was skipped."""
        return self._client.get_tokenizer()

    @property
    def chat(self) -> Chat | None:
        """The renderer of conversations. None without a tokenizer."""
        return self._frontend.chat

    @property
    def media(self) -> MediaPreprocessor | None:
        """The preprocessor of media. None: a text-only model."""
        return self._frontend.media

    @property
    def speaker(self) -> Speaker | None:
        """The reader of texts to be spoken. None: the model does not speak."""
        return self._frontend.speaker

    @property
    def default_sampling(self) -> dict[str, Any]:
        """SamplingParams fields of the model's generation config, as defaults of requests."""
        return self._frontend.default_sampling

    @property
    def model_names(self) -> list[str]:
        return self._frontend.names

    def check_pooling(self, params: PoolingParams) -> None:
        """RequestError, naming the field, for parameters that the model does not support with any prompt."""
        self._client.inputs.check_pooling(params)

    # ------------------------------------------------------------ the engine

    @property
    def state(self) -> str:
        """starting | ready | restarting | sleeping | failed | stopped"""
        return self._supervisor.state

    @property
    def ready(self) -> bool:
        """Could a request be served now?"""
        return not self.why_not_ready

    @property
    def why_not_ready(self) -> str:
        return self._supervisor.why_not_ready

    @property
    def restarts(self) -> int:
        """How many times the engine process has been replaced."""
        return self._supervisor.restarts

    @property
    def engine_pid(self) -> int | None:
        return self._supervisor.pid

    def stats(self) -> Stats | None:
        """The engine's latest snapshot. None before its first step."""
        return self._stats

    def progress(self, request_id: str) -> RequestMetrics | None:
        """Times of an open request so far. None: it is not open, or is a pooling request."""
        return self._client.outputs.metrics(request_id)

    async def get_kv_event_sources(self) -> list[dict[str, Any]]:
        """Addresses of published KV events, one of each engine, in the form of vLLM's /kv_event_sources. []: none are."""
        return [] if self._client.events is None else self._client.events.sources()

    def get_world_size(self, include_dp: bool = True) -> int:
        """Devices that share the model. include_dp: times the engines that share the requests."""
        args = self._frontend.args
        return args.tensor_parallel_size * args.pipeline_parallel_size * (self._supervisor.size if include_dp else 1)

    def stats_by_engine(self) -> dict[int, Stats]:
        """The latest snapshot of each engine that shares the requests, by number. {} where there is only one."""
        return self._supervisor.stats_by_engine()

    def ranks_by_engine(self) -> dict[int, RankHistory]:
        """The ranks of each engine, by its number."""
        return {number: each.ranks for number, each in enumerate(self._supervisor.members)}

    async def check_health(self) -> None:
        """EngineDeadError if there is no engine and there will be none. A restart is no error: see `ready`."""
        if self._dead or self.state in ("failed", "stopped"):
            raise EngineDeadError(str(self._dead or self.why_not_ready))
        if self.talker is not None:
            await self.talker.check_health()

    async def do_log_stats(self) -> None:
        """The latest snapshot, as a line of the log."""
        logger.info("%s", self._stats)

    async def is_tracing_enabled(self) -> bool:
        """Are traces exported? The server does that, from outside the engine."""
        return False

    @property
    def is_running(self) -> bool:
        """Is there an engine, or will there be one?"""
        return not self.errored and not self.is_stopped

    @property
    def is_stopped(self) -> bool:
        return self.errored

    @property
    def errored(self) -> bool:
        """Is there no engine any more?"""
        return self._dead is not None or self.state == "failed"

    @property
    def dead_error(self) -> BaseException:
        return EngineDeadError(str(self._dead or "the engine is alive"))

    notify_kv_transfer_request_rejected = unsupported_method("no keys and values come from other engines in this version")
