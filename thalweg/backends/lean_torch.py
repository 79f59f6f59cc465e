"""`import torch` without the parts that only its compiler, exporter and fake tensors need, until something needs them.

Why: two of torch's modules, with modules that only they import, are a quarter of the time of `import torch`. Running models
eagerly on the host uses neither. `torch._meta_registrations` holds, for every operator, how to compute the shape of its
result without its values. `torch.export` saves traced programs. A process that serves waits for them at each start.

Why it is safe: while `import torch` runs, empty modules replace these two, and no reference to them is kept. Afterwards the
two are simply not imported yet, as torch itself does with its compiler. From then on they are imported, both, before
  - any missing part of torch is imported (its compiler, exporter, tests, distributed tensors; a fake tensor mode
    imports the compiler's settings when it is made), or
  - any attribute that torch lacks is asked for (`torch.export`, and names that came along with the two, such as `torch._refs`).
Two uses are not watched. Both raise errors, and never give a wrong result. An operator on plain tensors of torch's meta
device raises NotImplementedError if its shapes were to come from there. `torch.ops` lacks the compiler's own operators
(`torch.ops.prims`). Nothing here uses either. Code that does calls `import_whole` first.

Only a platform's `preload` calls this. A process that has imported torch already, or is shared with other code, stays as it is.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import inspect
import os
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

PUT_OFF = ("torch.export", "torch._meta_registrations")
"""Modules in the order in which torch imports them. One that a version of torch does not import need not be put off."""
REGISTERING = ("torch._native.registry", "torch.utils._debug_mode._mode")
"""Modules that register operators with bodies for fake tensors as they are imported (torch 2.13). Torch then asks `inspect`
for the place of a body, and inspect, unless it knows the module of that file, resolves the paths of a thousand modules."""


def load_library() -> None:
    """Begin to load torch's largest library, a quarter of the time of importing it. That needs nothing of the interpreter, so
    it goes on in a thread while others import. An import of torch meanwhile waits in the system's loader. The import reports
    any error of the library."""
    found = importlib.util.find_spec("torch") if "torch" not in sys.modules else None
    if found is not None and found.submodule_search_locations and sys.platform == "linux":
        threading.Thread(target=_load, args=(found.submodule_search_locations[0],), name="load torch").start()


def _load(folder: str) -> None:
    """In torch's own order. Through the C function: ctypes' own loading holds the interpreter."""
    dlopen = getattr(ctypes.CDLL(None), "dlopen", None)
    if dlopen is None:
        return
    dlopen.restype, dlopen.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)
    for name, scope in (("libtorch_global_deps.so", os.RTLD_GLOBAL), ("libtorch_cpu.so", os.RTLD_LOCAL)):
        if not dlopen(os.fsencode(os.path.join(folder, "lib", name)), os.RTLD_NOW | scope):
            return


def import_torch() -> None:
    """Import torch, without PUT_OFF if this is the first import. One thread only. Other threads may import anything."""
    if "torch" in sys.modules:
        return
    finder = _StandIns()
    sys.meta_path.insert(0, finder)
    try:
        torch = importlib.import_module("torch")
    finally:
        sys.meta_path.remove(finder)
        put_off = finder.clear()
    if put_off:
        _Watch(torch, put_off).begin()


def import_whole() -> None:
    """Import PUT_OFF, if it was deferred."""
    for finder in list(sys.meta_path):
        if isinstance(finder, _Watch):
            finder.end()


class _StandIn(ModuleType):
    """An empty module. Asked for one of its attributes while torch is being imported, it gives way to the real one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # somebody looks over all modules, and wants nothing of this one
            raise AttributeError(name)
        return getattr(self.real(), name)

    def real(self) -> ModuleType:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


class _StandIns:
    """Finds a stand-in for each module of PUT_OFF, once. Finder and loader."""

    def __init__(self) -> None:
        self._made: dict[str, _StandIn] = {}

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in PUT_OFF and name not in self._made:
            return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        if name in REGISTERING and path:
            inspect.modulesbyfile[os.path.join(path[0], name.rpartition(".")[2] + ".py")] = name
        parent = sys.modules.get(name.rpartition(".")[0])
        return PathFinder.find_spec(name, parent.real().__path__) if isinstance(parent, _StandIn) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self._made[spec.name] = _StandIn(spec.name)
        return self._made[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        return

    def clear(self) -> list[str]:
        """Remove the stand-ins. Returns the names of unused ones."""
        names = [n for n, module in self._made.items() if sys.modules.get(n) is module]
        for name in names:
            parent, _, child = name.rpartition(".")
            stand_in = sys.modules.pop(name)
            if parent in sys.modules and vars(sys.modules[parent]).get(child) is stand_in:
                delattr(sys.modules[parent], child)
        return names


class _Watch:
    """Sees every import of a missing part of torch, and every look for an attribute it lacks. Both make torch whole first. It
    holds no lock. The import system's locks keep two threads from importing one module, and a thread that comes while another
    imports waits there."""

    def __init__(self, torch: ModuleType, put_off: Sequence[str]) -> None:
        self._torch, self._put_off = torch, put_off
        self._lacks: Callable[[str], Any] | None = vars(torch).get("__getattr__")
        self._busy = threading.local()
        self._whole = False

    def begin(self) -> None:
        sys.meta_path.insert(0, self)
        self._torch.__getattr__ = self._attribute  # type: ignore[method-assign]

    def end(self) -> None:
        """Import the deferred modules, once. Imports of these modules do not start it again."""
        if self._whole or getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            for name in self._put_off:
                importlib.import_module(name)
        finally:
            self._busy.now = False
        self._whole = True

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if self._whole or not name.startswith("torch."):
            return None
        self.end()
        return _AsItIs.spec(name) if name in sys.modules else None

    def _attribute(self, name: str) -> Any:
        """torch's own answer to a look for a missing attribute, once torch is whole. It replaces this method."""
        if not name.startswith("__"):
            self.end()
            if name in vars(self._torch):
                return vars(self._torch)[name]
        if self._lacks is None:
            raise AttributeError(f"module 'torch' has no attribute {name!r}")
        return self._lacks(name)


class _AsItIs:
    """Loads a module already there, by leaving it unchanged. The requested one may have come along with the rest. Made a second
    time it would lack everything put into the first."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    @staticmethod
    def spec(name: str) -> ModuleSpec:
        """Also put into the module for the moment: the import system believes that before a finder's answer."""
        module = sys.modules[name]
        result = module.__spec__ = ModuleSpec(name, _AsItIs(module))  # type: ignore[arg-type]
        return result

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
