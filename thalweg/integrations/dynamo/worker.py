"""The worker: an engine under the contract of `dynamo.common.backend` (Dynamo 1.6), and its registration."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import AsyncGenerator
from typing import Any

from thalweg import AsyncLLM, EngineArgs
from thalweg.checkpoint.hub import resolve_model
from thalweg.cli import common
from thalweg.errors import ConfigError, EngineDeadError, RequestError
from thalweg.integrations.dynamo.requests import (
    AGGREGATED,
    DECODE,
    PREFILL,
    ChunkStream,
    read_params,
    read_priority,
    read_tokens,
)
from thalweg.options.model import BUNDLED

try:
    from dynamo.common.backend import EngineConfig, LLMEngine, LlmRegistration, WorkerConfig
    from dynamo.common.backend.health_check import build_health_check_payload
    from dynamo.common.backend.publisher import ComponentSnapshot, ZmqSource
    from dynamo.common.backend.run import run
    from dynamo.common.configuration.groups.runtime_args import DynamoRuntimeArgGroup
    from dynamo.common.constants import DisaggregationMode
    from dynamo.llm.exceptions import EngineShutdown, InvalidArgument, Unknown
except ImportError as e:
    raise ConfigError(f"Dynamo is not installed ({e.name or e} is missing); pip install 'thalweg[dynamo]'") from None

MODES = (AGGREGATED, PREFILL, DECODE)


class DynamoEngine(LLMEngine):  # type: ignore[misc]
    """One engine of thalweg behind Dynamo's frontend. Crashes of the engine process do not reach the frontend: its requests
    go on once the engine is back."""

    def __init__(self, args: EngineArgs, mode: str = AGGREGATED) -> None:
        self._args, self._mode = args, mode
        self._engine: AsyncLLM | None = None
        self._publisher: Any = None
        self._running: dict[str, set[str]] = {}
        self._numbers = itertools.count()

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[DynamoEngine, WorkerConfig]:
        """argv: the model, flags of Dynamo's runtime, and the engine's of `thalweg serve`."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        DynamoRuntimeArgGroup().add_arguments(parser)
        parser.add_argument("--component")
        parser.add_argument("--disaggregation-mode", default=AGGREGATED)
        parser.add_argument("--disable-kv-routing", action="store_true")
        runtime, rest = parser.parse_known_args(argv)
        mode = runtime.disaggregation_mode
        if mode not in MODES:
            raise ConfigError(f"--disaggregation-mode {mode}: this worker has no such role; choose from {', '.join(MODES)}")
        runtime.component = runtime.component or ("prefill" if mode == PREFILL else "thalweg")
        namespace = common.parse("dynamo", rest, _add_model, about="A worker of Dynamo.")
        args = common.engine_args(namespace, namespace.model_tag)
        if mode != AGGREGATED and args.kv_transfer_config is None:
            raise ConfigError(
                f"--disaggregation-mode {mode} needs a store that prefill and decode workers share: --kv-transfer-config and "
                "--kv-key-secret (docs/kv-stores.md)"
            )
        names = args.served_model_name or [args.model]
        config = WorkerConfig.from_runtime_config(
            runtime, model_name=_find_model(args), served_model_name=names[0], disaggregation_mode=DisaggregationMode(mode),
            enable_kv_routing=not runtime.disable_kv_routing,
        )  # fmt: skip
        return cls(args, mode), config

    async def start(self, worker_id: int) -> EngineConfig:
        """Ready to serve. The errors of `AsyncLLM.start` pass through."""
        self._engine = engine = await AsyncLLM.start(self._args, loggers=[_Snapshots(self)])
        config = engine.config
        return EngineConfig(
            model=_find_model(self._args), served_model_name=engine.model_names[0], model_aliases=list(engine.model_names[1:]),
            llm=LlmRegistration(
                context_length=config.model.max_model_len, kv_cache_block_size=config.cache.block_tokens,
                total_kv_blocks=max(config.cache.blocks, default=1) - 1, max_num_seqs=config.scheduler.max_seqs,
                max_num_batched_tokens=config.scheduler.token_budget,
            ),
        )  # fmt: skip

    async def generate(self, request: Any, context: Any) -> AsyncGenerator[dict[str, Any], None]:
        """Chunks of a request. InvalidArgument if it is wrong, EngineShutdown without an engine."""
        assert self._engine is not None, "Dynamo starts the engine first"
        # A request that the frontend sends again keeps its id, and the first may not have ended.
        request_id = f"{context.id()}-{next(self._numbers)}"
        running = self._running.setdefault(context.id(), set())
        running.add(request_id)
        try:
            params = read_params(request, self._engine.default_sampling, self._mode)
            request["token_ids"] = tokens = read_tokens(request)  # in one form for callers that read it again
            stream = ChunkStream(params.logprobs or 0)
            ordered = self._engine.config.scheduler.policy == "priority"
            priority = read_priority(request) if ordered else 0
            async for output in self._engine.generate(tokens, params, request_id, priority=priority):
                if output.error is not None:
                    raise Unknown(output.error)
                for chunk in stream.add(output):
                    yield chunk
                if context.is_stopped() and not output.finished:
                    await self._engine.abort(request_id)
        except RequestError as e:
            raise InvalidArgument(str(e)) from None
        except EngineDeadError as e:
            raise EngineShutdown(str(e)) from None
        finally:
            running.discard(request_id)
            if not running:
                self._running.pop(context.id(), None)

    async def abort(self, context: Any) -> None:
        """End a request whose client is gone. Its stream ends with the reason "cancelled"."""
        if self._engine is not None:
            await self._engine.abort(list(self._running.get(context.id(), ())))

    async def is_quiescent(self) -> bool:
        """Whether the store has the blocks of every prompt: a prefill is answered after that."""
        return not self._running

    async def cleanup(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.shutdown()

    async def kv_event_sources(self) -> list[Any]:
        """The sockets of `--kv-events-config`. []: none were configured."""
        assert self._engine is not None, "Dynamo starts the engine first"
        sources = await self._engine.get_kv_event_sources()
        return [ZmqSource(endpoint=s["endpoint"], topic=s["topic"], dp_rank=s["data_parallel_rank"]) for s in sources]

    def component_metrics_dp_ranks(self) -> list[int]:
        return [0] if self._args.data_parallel_size in (None, 1) else []

    def attach_snapshot_publisher(self, publisher: Any) -> None:
        self._publisher = publisher

    async def health_check_payload(self) -> Any:
        """A request for one token."""
        assert self._engine is not None, "Dynamo starts the engine first"
        tokenizer = self._engine.tokenizer
        return build_health_check_payload(bos_token_id=(tokenizer.bos_id if tokenizer else None) or 0)

    def publish(self, used: int, total: int, hit_rate: float | None) -> None:
        """Send the load of the cache to Dynamo's router and metrics, in blocks."""
        if self._publisher is not None:
            share = used / total if total else 0.0
            self._publisher.publish(0, ComponentSnapshot(used, total, share, 0, hit_rate))


def _find_model(args: EngineArgs) -> str:
    """The model as Dynamo knows it: a directory or a hub id, from which the frontend reads its tokenizer and template."""
    return str(resolve_model(BUNDLED)) if args.model == BUNDLED else args.model


class _Snapshots:
    """A StatLogger that publishes the load of the cache."""

    def __init__(self, engine: DynamoEngine) -> None:
        self._engine = engine

    def record(self, outputs: Any) -> None:
        if (stats := outputs.stats) is not None:
            rate = stats.prefix_hits / stats.prefix_queries if stats.prefix_queries else None
            self._engine.publish(stats.blocks_used, stats.blocks_total, rate)

    def record_request(self, output: Any, params: Any) -> None:
        """The load is in frames."""


def run_worker(argv: list[str]) -> None:
    """Serve until a signal. ConfigError names a wrong flag."""
    run(DynamoEngine, argv)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="directory or hub id; left out: thalweg-nano")
