"""What programs ask of an AsyncLLM beside requests: is it alive, and what of the field it has not."""

from __future__ import annotations

import logging

from thalweg.engine.client.frontend import Frontend
from thalweg.engine.messages import Stats
from thalweg.errors import EngineDeadError, ThalwegError
from thalweg.refused import CODE, PINNED, NoNewWeights, NoOtherConfig, refused

logger = logging.getLogger(__name__)


class About(NoNewWeights, NoOtherConfig):
    """The part of AsyncLLM that only tells."""

    _frontend: Frontend
    _dead: ThalwegError | None
    _stats: Stats | None

    @property
    def state(self) -> str:
        """starting | ready | restarting | sleeping | failed | stopped"""
        raise NotImplementedError

    async def reset_mm_cache(self) -> None:
        """Read every image anew from now on."""
        if self._frontend.media:
            self._frontend.media.forget()

    async def reset_encoder_cache(self) -> None:
        """Outputs of the encoder are found by what an image shows, and by nothing that could change: none goes stale."""

    def get_world_size(self, include_dp: bool = True) -> int:
        """Devices that share the model. include_dp: times the engines that share the requests."""
        args = self._frontend.args
        return args.tensor_parallel_size * (args.data_parallel_size if include_dp else 1)

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

    collective_rpc = refused(CODE)
    pin_lora = refused(PINNED)
    start_profile = refused("an engine in a process of its own records no traces; LLM(profiler_config=...) does")
    stop_profile = refused("an engine in a process of its own records no traces; LLM(profiler_config=...) does")
    scale_elastic_ep = refused("experts are not spread over devices by this version")
    notify_kv_transfer_request_rejected = refused("no keys and values come from other engines in this version")
