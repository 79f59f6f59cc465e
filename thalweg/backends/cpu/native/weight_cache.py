"""Packed weights kept in a folder: written by the first start that makes them, mapped by later ones.

A file holds one weight as kernels read it, and nothing else. Its name is made of the packed values (`thalweg_digest`) and of
the way they were packed. Another checkpoint, format or instruction set thus has files of other names, and equal weights share
one. A file comes into the folder whole, under its name, or not at all. After a power failure it may be short, and is then made
again. No weight is ever removed: the folder may be deleted at any time.

Only weights packed straight from mapped files are kept: dense ones, and those rounded on the way.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import mmap
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from thalweg.backends.cpu.native import NativeLibrary

logger = logging.getLogger(__name__)
LAYOUT = 2
"""Raised whenever a packed weight has other bytes than before."""
SUFFIX = ".packed"
PART = "part-"
"""Prefix of the names of unfinished files."""
STALE = 3600
"""Seconds. A file is not written for longer: its writer has died."""


class PackedWeightCache:
    """The cache of one open library: the instruction set decides the layout. folder: made where it is missing. OSError if it
    cannot be."""

    def __init__(self, library: NativeLibrary, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._library, self._folder = library, folder
        self._writes = True
        self._named, self._told = 0, False
        for left in folder.glob(f"{PART}*"):
            with contextlib.suppress(OSError):  # somebody else removed it
                if left.stat().st_mtime < time.time() - STALE:
                    left.unlink()

    def name(self, parts: Sequence[np.ndarray], *how: object) -> str:
        """The file of a weight made of these values. how: all that its bytes depend on besides."""
        self._named += 1
        digests = []
        for part in parts:
            out = (ctypes.c_uint64 * 2)()
            self._library.digest(self._library.context, part.ctypes.data, part.nbytes, ctypes.addressof(out))
            digests.append((part.shape, part.dtype.str, *out))
        reported = repr((LAYOUT, self._library.level, digests, how))
        return hashlib.sha256(reported.encode()).hexdigest()[:40] + SUFFIX

    def tell(self) -> None:
        """Once all weights are there, report on the cache: a warning where none can be kept."""
        if self._told:
            return
        self._told = True
        if self._named:
            logger.info("packed_weights: %d weights lie in %s", self._named, self._folder)
        else:
            logger.warning("packed_weights: nothing of this checkpoint is kept: only dense weights in safetensors files are")

    def map(self, name: str) -> np.ndarray | None:
        """The bytes of that file, u8, which may not be written. None if there is none, and where it cannot be mapped."""
        try:
            file = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as e:
            self._warn_unused(name, e)
            return None
        try:
            mapped = mmap.mmap(file, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        except (OSError, ValueError) as e:  # empty, or no file
            self._warn_unused(name, e)
            return None
        finally:
            os.close(file)
        if hasattr(mmap, "MADV_WILLNEED"):
            mapped.madvise(mmap.MADV_WILLNEED)
        return np.frombuffer(mapped, np.uint8)

    def _warn_unused(self, name: str, why: Exception) -> None:
        logger.warning("packed_weights: %s is not used: %s", self._folder / name, why)

    def write(self, name: str, address: int, size: int) -> None:
        """Keep these bytes. Where that fails, a warning says why, and no more are."""
        if not self._writes:
            return
        part = ""
        try:
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=PART, delete=False) as file:
                part = file.name
                file.write((ctypes.c_char * size).from_address(address))
            os.replace(part, self._folder / name)
        except OSError as e:
            self._writes = False
            logger.warning("packed_weights: %s: no more weights are kept: %s", self._folder, e)
            if part and os.path.exists(part):
                os.unlink(part)
