"""First stage: the arguments checked, the model declared, the device opened. Loads no weights."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thalweg.checkpoint import ahead
from thalweg.checkpoint.config import facts as read_facts
from thalweg.config import EngineArgs, check_args
from thalweg.engine.planning import checkpoint_config, resolve
from thalweg.engine.planning.draft import read_draft
from thalweg.engine.planning.memory import to_load
from thalweg.errors import ConfigError, ThalwegError
from thalweg.executors import is_inline
from thalweg.hal import discovery
from thalweg.hal.device import Device
from thalweg.hal.platform import Defaults, ModelInfo, Place, Platform
from thalweg.host.marks import mark
from thalweg.models import registry
from thalweg.models.drafts.declared import DraftModel
from thalweg.models.spec import ModelSpec
from thalweg.quantization import registry as formats

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BuildInputs:
    """The facts that every later stage reads."""

    args: EngineArgs
    path: Path
    hf: dict[str, Any]
    facts: ModelInfo
    spec: ModelSpec
    platform: Platform
    device: Device
    defaults: Defaults
    place: Place
    draft: DraftModel | None
    """A draft model next to the model, or the module of the model that drafts."""

    @property
    def ranks(self) -> range:
        """Those of its pipeline stage that the device computes: all where one process drives every device."""
        return range(self.place.tensor_rank, self.place.tensor_rank + len(self.place.devices))


def prepare(device: str, expected: EngineArgs | None = None) -> None:
    """Load the code that serving on `--device device` needs, and open nothing. Errors are raised later, by `build`.

    expected: the arguments that `build` will get."""
    try:
        platform = discovery.resolve_platform(device)
        if platform.runs_models and (expected is None or is_inline(expected.distributed_executor_backend)):
            if expected is not None:
                ahead.begin(expected)
                _expect(platform, expected)
            platform.preload()  # first: the platform decides how its framework is imported
            import thalweg.models.build
            import thalweg.models.load
            import thalweg.models.step  # noqa: F401
    except (ThalwegError, ImportError):
        return
    mark("framework imported")


@contextlib.contextmanager
def start_ahead(args: EngineArgs) -> Iterator[None]:
    """For the code around `build` in a process that builds once: the platform begins work on other threads meanwhile, and
    drops it if the block raises."""
    platform = None
    with contextlib.suppress(ThalwegError, ImportError):
        platform = discovery.resolve_platform(args.device)
    if platform is None or not platform.runs_models or not is_inline(args.distributed_executor_backend):
        yield
        return
    platform.begin()
    ahead.begin(args)
    _expect(platform, args)
    try:
        yield
    except BaseException:
        platform.expect(0)
        ahead.drop()
        raise


def _expect(platform: Platform, args: EngineArgs) -> None:
    """Announce the bytes about to be loaded to the platform, if the model is here."""
    with contextlib.suppress(ThalwegError, OSError, ValueError):  # `build` raises these again
        if not Path(args.model).exists() or registry.foreign(checkpoint_config.read(args, Path(args.model))):
            return  # a module's spec would load a framework before the platform does
        size = to_load(args, platform)
        if size:
            resolve.configure_platform(args, platform).expect(size)


def open_device(
    args: EngineArgs, platform: Platform | None, place: Place | None = None, join: Callable[[], None] = lambda: None
) -> BuildInputs:
    """The inputs of all later stages. The caller closes the device. join: called before the device is opened, which may wait
    for other ranks. Errors as in `build`."""
    mark("engine started")
    check_args(args)
    path = Path(args.model)
    hf = checkpoint_config.read(args, path)
    formats.scheme(hf, args.quantization)
    hf, spec = registry.declare(hf, path)  # refuse an unknown architecture before a framework is imported
    spec = resolve.divide(args, spec, place.stage if place else 0)
    facts = resolve.within(read_facts(hf, path), spec)
    args = resolve.for_tail(args, spec)
    draft = read_draft(args, hf, spec, path)
    configured = functools.partial(resolve.configure_platform, args)
    platform = configured(platform) if platform else discovery.choose(args.device, configured)
    resolve.check_values(args, platform)
    if platform.runs_models:
        args = _with_cache_type(args, hf, spec)
    processes = max(1, len(resolve.places(args, platform)) // args.nnodes)  # of this machine
    if place is None:
        place = resolve.only_place(args, platform)
    join()
    device = platform.open(place)
    try:
        defaults = resolve.share_of_device(platform, processes, device.info, platform.defaults(facts, device.info))[1]
        if args.enforce_eager and device.pads:
            raise ConfigError(f"enforce_eager: on {platform.name} every step is compiled; leave the flag out")
    except BaseException:
        device.close()
        raise
    return BuildInputs(args, path, hf, facts, spec, platform, device, defaults, place, draft)


def _with_cache_type(args: EngineArgs, hf: dict[str, Any], spec: ModelSpec) -> EngineArgs:
    resolved = checkpoint_config.resolve_kv_cache_dtype(args, hf, spec)
    if resolved.kv_cache_dtype != args.kv_cache_dtype:
        logger.info(
            "keys and values are cached in %s, as the checkpoint says; --kv-cache-dtype with the model's own type (bfloat16, "
            "float16) keeps them as they are", resolved.kv_cache_dtype,
        )  # fmt: skip
    return resolved
