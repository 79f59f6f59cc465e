"""Keep Python's garbage collector from walking freshly imported or loaded objects."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def pause_gc() -> Iterator[None]:
    """Pause collection around imports and loading. They produce almost no garbage, and walking their objects costs a tenth of
    their time. The objects count as old afterwards, without a walk. Safe in a process shared with other code: objects frozen by
    others stay frozen."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()
