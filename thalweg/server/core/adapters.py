"""Adapters that the server serves as models, by name: those of `--lora-modules`, and those that operators load later."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thalweg.checkpoint.adapters import find_format
from thalweg.errors import (
    CheckpointError,
    ConfigError,
    EngineDeadError,
    RequestError,
    ThalwegError,
    UnavailableError,
    UnsupportedModelError,
)
from thalweg.lora import LoRARequest, read_modules
from thalweg.server.errors import ApiError
from thalweg.server.resolvers import RESOLVERS, Resolver
from thalweg.server.settings import ServerSettings

if TYPE_CHECKING:
    from thalweg.async_llm import AsyncLLM

log = logging.getLogger(__name__)
NAME = re.compile(r"[A-Za-z0-9._/-]{1,255}")
INTERRUPTED = "the engine stopped before it had loaded the adapter; try again later"


async def load_modules(engine: AsyncLLM, settings: ServerSettings) -> list[LoRARequest]:
    """Load the adapters of `--lora-modules` and `--default-mm-loras`. Returns the first. ConfigError for a name already in
    use. Errors of `AsyncLLM.add_lora` pass through."""
    modules = read_modules(settings.lora_modules or [])
    taken = next((m.lora_name for m in modules if m.lora_name in engine.model_names), None)
    if taken is not None:
        raise ConfigError(f"--lora-modules: {taken}: the model itself has this name; give the adapter another one")
    for module in modules:
        await engine.add_lora(module)
    await engine.add_default_loras()
    return modules


@dataclass(slots=True, eq=False)
class ServedAdapter:
    """An adapter under its name. A request that was accepted keeps it until it ends, also if the name goes meanwhile."""

    request: LoRARequest
    root: str
    """The path as the operator wrote it."""
    users: int = 0
    """Accepted requests that have not ended."""
    queued: int = 0
    """Prompts that wait for their turn before the engine."""
    listed: bool = True
    """Do new requests find it?"""


class ServedAdapters:
    """The adapters of a server, by name. Everything on its event loop, but looking at files."""

    def __init__(
        self, engine: AsyncLLM, roots: Sequence[str], loaded: Sequence[LoRARequest] = (), resolvers: Sequence[str] = ()
    ) -> None:
        """roots: folders of `--lora-root`. loaded: adapters that the engine has already. resolvers: names in `RESOLVERS`."""
        self._engine, self._roots = engine, tuple(roots)
        self._resolvers: list[Resolver] = [RESOLVERS.load(name) for name in resolvers]
        self._served = {r.lora_name: ServedAdapter(r, r.lora_path) for r in loaded}
        self._numbers = itertools.count(1 + max((r.lora_int_id for r in loaded), default=0))
        self._changing = asyncio.Lock()
        self.is_taken: Callable[[str], bool] = lambda name: False
        """Does another model of the server have this name?"""

    def names(self) -> list[str]:
        return list(self._served)

    def find(self, name: str) -> ServedAdapter | None:
        return self._served.get(name)

    # ------------------------------------------------------------------ requests

    def open(self, name: str) -> ServedAdapter | None:
        """A request that names it is accepted. Call `close` at its end. None: no adapter has the name."""
        found = self._served.get(name)
        if found is not None:
            found.users += 1
        return found

    def close(self, adapter: ServedAdapter) -> None:
        """The request has ended."""
        adapter.users -= 1
        if not adapter.users and not adapter.listed:
            self._engine.retire_lora(adapter.request.lora_int_id)

    @contextmanager
    def queue(self, adapter: ServedAdapter | None) -> Iterator[None]:
        """While a prompt waits for its turn."""
        if adapter is not None:
            adapter.queued += 1
        try:
            yield
        finally:
            if adapter is not None:
                adapter.queued -= 1

    def in_use(self) -> tuple[list[str], list[str]]:
        """Names of adapters with sequences that run, and of those with prompts that wait, here or in the engine."""
        running, waiting = self._engine.adapters_in_use()
        return running, sorted({*waiting, *(name for name, a in self._served.items() if a.queued)})

    async def resolve(self, name: str | None) -> None:
        """Ask the resolvers for an unknown name of a request, and load the first one's result. No effect if none finds it.
        ApiError if it cannot be served, without the path, which the client did not give."""
        if not self._resolvers or not name or name in self._served or name in self._engine.model_names or not is_name(name):
            return
        async with self._changing:
            for resolver in self._resolvers if name not in self._served else ():
                path = await asyncio.to_thread(ask_resolver, resolver, self._engine.model_names[0], name, self._roots)
                if path is None:
                    continue
                try:
                    return await self._load(name, path, False)
                except ApiError as e:
                    if e.status != 404:
                        words = e.message.removeprefix("lora_path: ").replace(path, name)
                        raise ApiError(f"model: {words}", "model", e.status) from None

    # ------------------------------------------------------------------ operators

    async def load(self, name: str, path: str, inplace: bool, is_3d: bool) -> None:
        """Serve the adapter at `path`, which is absolute or relative to a root. Returns when the engine has checked and loaded
        it. inplace: it may replace the adapter of this name. ApiError gives the reason, and nothing changes."""
        self._check_name(name)
        async with self._changing:
            if name in self._served and not inplace:
                raise ApiError(
                    f"lora_name: the adapter {name!r} has already been loaded; to replace it, set load_inplace to true",
                    "lora_name",
                )
            await self._load(name, path, is_3d)

    async def _load(self, name: str, path: str, is_3d: bool) -> None:
        """As `load`, of a checked name. Its caller has the lock."""
        if not self._engine.ready:
            raise UnavailableError(self._engine.why_not_ready or "the engine is not ready; try again later")
        found = await asyncio.to_thread(resolve_path, path, self._roots)
        known = self._served.get(name)
        number = next(self._numbers) if known is None else known.request.lora_int_id
        base = None if known is None else known.request.base_model_name
        request = LoRARequest(name, number, found, base, is_3d_lora_weight=is_3d)
        try:
            await self._add(LoRARequest(name, number, found, base, load_inplace=True))  # never an earlier content
        except (UnavailableError, EngineDeadError):
            raise
        except ThalwegError as e:  # the client's path, and not where a root lies
            words = str(e).replace(found, path)
            raise ApiError(words if words.startswith("lora_") else f"lora_path: {words}", "lora_path") from None
        if known is None:
            self._served[name] = ServedAdapter(request, path)
        else:
            known.request, known.root = request, path

    async def _add(self, request: LoRARequest) -> None:
        await self._engine.add_lora(request)
        if self._engine.state != "ready":  # then it is unchecked
            if request.lora_name not in self._served:
                self._engine.retire_lora(request.lora_int_id)
            raise UnavailableError(INTERRUPTED)

    async def unload(self, name: str, number: int | None) -> None:
        """New requests no longer find the adapter. Accepted ones finish with it. number: its expected `lora_int_id`. None: any.
        ApiError 404 for an unknown adapter."""
        async with self._changing:
            adapter = self._served.get(name)
            if adapter is None or number not in (None, adapter.request.lora_int_id):
                words = f"lora_name: the adapter {name!r} cannot be found"
                if adapter is not None:
                    words = f"lora_int_id: the adapter {name!r} has the number {adapter.request.lora_int_id}, not {number}"
                raise ApiError(words, words.partition(":")[0], 404)
            del self._served[name]
            adapter.listed = False
            if not adapter.users:
                self._engine.retire_lora(adapter.request.lora_int_id)

    def _check_name(self, name: str) -> None:
        """ApiError for a name that no adapter may have."""
        if not is_name(name):
            raise ApiError(
                f"lora_name: {name!r:.300} must be 1 to 255 letters, digits and characters of ._/- , without '..'", "lora_name"
            )
        if name in self._engine.model_names:
            raise ApiError(f"lora_name: {name!r} is a name of the model itself; give the adapter another one", "lora_name")
        if self.is_taken(name):
            raise ApiError(
                f"lora_name: {name!r} belongs to another model of this server; give the adapter another one", "lora_name"
            )


def is_name(name: str) -> bool:
    """May an adapter have this name?"""
    return NAME.fullmatch(name) is not None and ".." not in name


@contextmanager
def explain_lost() -> Iterator[None]:
    """Around a request to the engine: ApiError 404 if the files of its adapter can no longer be read, or have changed."""
    try:
        yield
    except (CheckpointError, UnsupportedModelError) as e:
        raise describe_lost(str(e)) from e
    except RequestError as e:
        if e.param != "lora_request":
            raise
        raise describe_lost(str(e)) from e


def find_lost(error: str | None) -> ApiError | None:
    """The same for the error of an engine's output. None: it is another one."""
    return describe_lost(error) if error is not None and error.startswith("lora_request: ") else None


def describe_lost(why: str) -> ApiError:
    """why: for the log, as it names the operator's files."""
    log.error("an adapter cannot be loaded again: %s", why)
    words = "the files of this adapter are missing or have changed since it was loaded; the server's log says more"
    return ApiError(f"model: {words}. Use another model, or have the adapter loaded again", "model", 404)


def ask_resolver(resolver: Resolver, base: str, name: str, roots: Sequence[str]) -> str | None:
    """The path that a resolver finds. Packages write resolvers: one that raises, or returns no text, has found nothing."""
    try:
        path = resolver(base, name, roots)
    except Exception as e:
        log.error("--lora-resolver: %s: %s: %s", getattr(resolver, "__module__", resolver), type(e).__name__, e)
        return None
    if path is not None and not isinstance(path, str):
        log.error("--lora-resolver: %s: returned %s, not text", getattr(resolver, "__module__", resolver), type(path).__name__)
        return None
    return path


def resolve_path(path: str, roots: Sequence[str]) -> str:
    """The adapter's folder, without symbolic links. ApiError 400 if it is in no root, or a link of the folder leads out of the
    roots. 404 if there is no adapter."""
    if not roots:
        raise ApiError("lora_path: start the server with --lora-root DIR, a folder of adapters to load", "lora_path")
    if not path or "\0" in path:
        raise ApiError("lora_path: must be the path of an adapter", "lora_path")
    real = [os.path.realpath(root) for root in roots]
    candidates = dict.fromkeys(os.path.realpath(os.path.join(root, path)) for root in real)
    inside = [c for c in candidates if _is_inside(c, real)]
    if not inside:
        raise ApiError(f"lora_path: {path!r:.300} is in no folder of --lora-root", "lora_path")
    found = next((c for c in inside if os.path.exists(c)), None)
    if found is None:
        raise ApiError(f"lora_path: {path!r:.300} does not exist", "lora_path", 404)
    if find_format(found) is None:
        raise ApiError(f"lora_path: {path!r:.300} holds no adapter of a known format", "lora_path", 404)
    for folder, folders, files in os.walk(found):
        leaving = next((f for f in (*folders, *files) if not _is_inside(os.path.realpath(os.path.join(folder, f)), real)), None)
        if leaving is not None:
            raise ApiError(f"lora_path: {leaving!r:.300} is a link out of the folders of --lora-root", "lora_path")
    return found


def _is_inside(path: str, roots: Sequence[str]) -> bool:
    return any(os.path.commonpath((path, root)) == root for root in roots)
