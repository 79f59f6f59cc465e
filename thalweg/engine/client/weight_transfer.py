"""New weights from a trainer: received into a staged checkpoint, then an engine of that checkpoint replaces the running one.

Until `finish` the engine serves the old weights. It then ends, and its replacement loads the staged checkpoint as it would load
any: the family's reader maps the names, and quantisation and division among ranks follow. Open requests go on with prompt and
emitted tokens, unless they were ended by a pause. The prefix cache is empty. If the new weights cannot be loaded, the old ones
serve again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from thalweg.checkpoint.staging import StagedCheckpoint
from thalweg.engine.client.fleet import Engines
from thalweg.engine.client.frontend import Frontend
from thalweg.engine.client.pause import PauseController
from thalweg.engine.ipc.codec import Codec
from thalweg.engine.ipc.pair import pair
from thalweg.engine.ipc.socket import AsyncChannel, ChannelClosedError
from thalweg.engine.ipc.weights import JoinGroup, ReceiveTensors, ToReceiver, TransferDone
from thalweg.errors import NotSupportedError, RequestError, UnavailableError
from thalweg.host import processes
from thalweg.options.weight_transfer import WeightTransferConfig, read_transfer_config
from thalweg.refused import CODE

logger = logging.getLogger(__name__)
GRACE_SECONDS = 5.0
"""Beyond the timeout of torch.distributed, which then says more."""
OFF = 'trainers send no weights to this engine: start it with --weight-transfer-config \'{"backend": "gloo"}\''


MOST_RANKS = 1 << 20
WORKER_METHODS = ("init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update")
"""Methods of vLLM's workers that trainers call, and that an engine has."""


class InitInfo(msgspec.Struct, forbid_unknown_fields=True):
    """The trainer's process group. The receiver gets the ranks from rank_offset on."""

    master_address: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._:%-]+$")]
    master_port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    rank_offset: int
    world_size: Annotated[int, msgspec.Meta(le=MOST_RANKS)]


class UpdateInfo(msgspec.Struct):
    """Tensors of one batch, in the order of their broadcasts."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    packed: bool = False


class _Receiver:
    """A process that has one rank of the trainer's group."""

    def __init__(self) -> None:
        self._sock, theirs = pair()
        with theirs:
            descriptor = theirs.fileno()
            words = ("thalweg.engine.worker.weight_receiver", str(descriptor))
            self._process = processes.Process(*words, inherit=[descriptor])
        self._channel: AsyncChannel | None = None

    async def ask(self, message: ToReceiver, seconds: float) -> None:
        """Send a message and wait for its answer. RequestError says why it failed, also if the process ends."""
        if self._channel is None:
            self._channel = await AsyncChannel.over(self._sock, Codec[Any](TransferDone))
        try:
            self._channel.post(message)
            answer: TransferDone = await asyncio.wait_for(self._channel.receive(), seconds + GRACE_SECONDS)
        except TimeoutError:
            raise RequestError(f"weight transfer: no answer of the receiving process within {seconds:g} s") from None
        except ChannelClosedError:
            raise RequestError("weight transfer: the receiving process has ended") from None
        if answer.error:
            raise RequestError(f"weight transfer: {answer.error}")

    async def close(self) -> None:
        self._process.kill()
        if self._channel is None:
            self._sock.close()
        else:
            await self._channel.close()
        self._process.end()


class WeightTransfer:
    """The transfer of one client. `world_size`: ranks that it has in the trainer's group."""

    def __init__(self, config: WeightTransferConfig, source: Path, world_size: int) -> None:
        """source: the checkpoint in use."""
        self._config, self._source, self._world_size = config, source, world_size
        self._receivers: list[_Receiver] = []
        self._staged: StagedCheckpoint | None = None
        self._used: StagedCheckpoint | None = None
        self._lock = asyncio.Lock()
        self.version = 0
        """Updates since the start."""

    async def init(self, fields: Mapping[str, Any]) -> None:
        """Join the trainer's group. RequestError names a wrong field, or says why it could not be joined."""
        info = _convert(fields, InitInfo, "init_info")
        if info.world_size - info.rank_offset != self._world_size or info.rank_offset < 1:
            raise RequestError(
                f"init_info: world_size {info.world_size} must be rank_offset {info.rank_offset} plus {self._world_size}, the "
                "world_size of /get_world_size; the trainer has rank 0",
                "init_info",
            )
        async with self._lock:
            await self._leave()
            self._receivers = [_Receiver() for _ in range(self._world_size)]
            backend, seconds, first = self._config.backend, self._config.timeout, info.rank_offset
            where = (info.master_address, info.master_port)
            try:
                await self._ask_all(lambda i: JoinGroup(backend, *where, first + i, info.world_size, seconds))
            except RequestError as e:
                words = f"{e}. The trainer, rank 0, must join at {where[0]} port {where[1]} during this call"
                raise RequestError(words, "init_info") from None

    async def start(self, is_checkpoint_format: bool) -> None:
        """Begin an update. One that was not finished is discarded."""
        if not is_checkpoint_format:
            raise RequestError("is_checkpoint_format: must be true: names and shapes are those of the checkpoint's files")
        if not self._receivers:
            raise RequestError("call init_weight_transfer_engine first")
        async with self._lock:
            self._discard()
            self._staged = await asyncio.to_thread(StagedCheckpoint, self._source, self._config.folder)

    async def update(self, fields: Mapping[str, Any]) -> None:
        """Receive one batch. RequestError names the field. After a failed broadcast, the update starts again at `init`."""
        info = _convert(fields, UpdateInfo, "update_info")
        if info.packed:
            raise RequestError("update_info.packed: must be false: each tensor is one broadcast", "update_info.packed")
        async with self._lock:
            staged = self._staged
            if staged is None:
                raise RequestError("call start_weight_update first")
            tensors = staged.check(info.names, info.dtype_names, info.shapes)
            file = str(staged.next_shard())
            await self._ask_all(lambda i: ReceiveTensors(None if i else file, tensors))
            staged.add(tensors)

    async def finish(self, replace: Callable[[Path], Awaitable[None]]) -> None:
        """Serve the new weights. replace: replaces the engine by one of a checkpoint, or raises and leaves the old one. Goes on
        to its end if the caller is cancelled."""
        await asyncio.shield(asyncio.create_task(self._finish(replace)))

    async def _finish(self, replace: Callable[[Path], Awaitable[None]]) -> None:
        async with self._lock:
            staged, self._staged = self._staged, None
            if staged is None:
                raise RequestError("call start_weight_update first")
            try:
                folder = await asyncio.to_thread(staged.complete)
                await replace(folder)
            except BaseException:
                staged.discard()
                raise
            before, self._used, self._source = self._used, staged, folder
            self.version += 1
            logger.info("the engine serves weights of a trainer, update %d", self.version)
            if before is not None:
                before.discard()

    async def close(self) -> None:
        """Delete staged files, and end the receivers. An engine that has opened the files may still use them."""
        if self._used is not None:
            self._used.discard()
        await self._leave()

    async def _ask_all(self, message: Callable[[int], ToReceiver]) -> None:
        """Send each receiver its message. A group in which one failed is of no use, and is left."""
        try:
            seconds = self._config.timeout
            await asyncio.gather(*(r.ask(message(i), seconds) for i, r in enumerate(self._receivers)))
        except BaseException:
            await self._leave()
            raise

    async def _leave(self) -> None:
        self._discard()
        receivers, self._receivers = self._receivers, []
        for receiver in receivers:
            await receiver.close()

    def _discard(self) -> None:
        if self._staged is not None:
            self._staged.discard()
            self._staged = None


def _convert(fields: Mapping[str, Any], kind: Any, name: str) -> Any:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as e:
        raise RequestError(f"{name}: {e}", name) from None


class WeightTransferMethods:
    """The part of AsyncLLM that receives weights."""

    _frontend: Frontend
    _supervisor: Engines
    _resting: PauseController
    _wait_started: Callable[[], Awaitable[None]]
    _transfer: WeightTransfer | None = None
    get_world_size: Callable[..., int]

    @property
    def receives_weights(self) -> bool:
        """May a trainer send weights?"""
        return self._frontend.args.weight_transfer_config is not None

    @property
    def weights_version(self) -> int:
        """Updates of the weights since the start."""
        return 0 if self._transfer is None else self._transfer.version

    def _weights(self) -> WeightTransfer:
        if self._transfer is None:
            config = read_transfer_config(self._frontend.args.weight_transfer_config)
            if config is None:
                raise RequestError(OFF, "weight_transfer_config")
            self._transfer = WeightTransfer(config, self._frontend.path, self.get_world_size())
        return self._transfer

    async def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        """Join the trainer's process group: {master_address, master_port, rank_offset, world_size}. Returns when the trainer
        has joined too. RequestError names the field."""
        await self._wait_started()
        await self._weights().init(init_info)

    async def start_weight_update(self, is_checkpoint_format: bool = True) -> None:
        """Begin an update. The engine serves the old weights until `finish_weight_update`."""
        await self._weights().start(is_checkpoint_format)

    async def update_weights(self, update_info: Mapping[str, Any]) -> None:
        """Receive {names, dtype_names, shapes}: one broadcast from rank 0 each, in this order. Names and shapes are those of
        the checkpoint's files. RequestError names the field."""
        await self._weights().update(update_info)

    async def finish_weight_update(self) -> None:
        """Replace the engine by one with the new weights. Tensors that were not sent stay as they were. Open requests go on. If
        the new weights cannot be loaded, the old ones serve again, and RequestError says why. UnavailableError while the engine
        is restarting, or asleep."""
        if self._resting.asleep:
            raise UnavailableError("the engine sleeps; wake it before the update is finished")
        await self._weights().finish(lambda folder: self._supervisor.change_model(str(folder)))

    async def collective_rpc(
        self, method: Any, timeout: float | None = None, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call a method of the workers by vLLM's name: one of `WORKER_METHODS`. Returns its result for each rank. timeout:
        seconds, after which TimeoutError is raised. NotSupportedError for another method or a function."""
        if method not in WORKER_METHODS:
            named = f"{method!r:.60} is not one of {', '.join(WORKER_METHODS)}"
            raise NotSupportedError(f"collective_rpc: {named}: {CODE}")
        call = getattr(self, method)
        try:
            inspect.signature(call).bind(*args, **(kwargs or {}))
        except TypeError as e:
            raise RequestError(f"collective_rpc: {method}: {e}", "args") from None
        result = await asyncio.wait_for(call(*args, **(kwargs or {})), timeout)
        return [result] * self.get_world_size()
