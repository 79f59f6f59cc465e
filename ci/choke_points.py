"""Things that happen in one place only, so that one place can be reviewed: templates, sockets, processes, environment;
things that happen nowhere: pickle, eval; which packages each room may use; how long a file or function may be.

Run: python ci/choke_points.py [REPOSITORY]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from source import Finding, Source, dotted, imports, main

MAX_FILE_LINES, MAX_FUNCTION_LINES = 600, 80


@dataclass(frozen=True, slots=True)
class Choke:
    """names: modules imported or dotted names used. homes: files or folders (ending in /) that may; () = nobody."""

    names: tuple[str, ...]
    homes: tuple[str, ...]
    why: str


CHOKES = (
    Choke(("llguidance",), ("thalweg/grammar/compiled.py",), "grammars are compiled behind one door, with its limits"),
    Choke(("opentelemetry",), ("thalweg/server/observe/traces.py",), "an optional library; the rest works without it"),
    Choke(
        ("zmq",),
        ("thalweg/engine/ipc/publisher.py", "thalweg/engine/control/store/lmcache.py"),
        "an optional library; the rest works without it",
    ),
    Choke(
        ("ray",),
        ("thalweg/engine/executor/ray_cluster.py", "thalweg/integrations/ray/"),
        "an optional library; the rest works without it",
    ),
    Choke(("dynamo",), ("thalweg/integrations/dynamo/worker.py",), "an optional library; the rest works without it"),
    Choke(("redis",), ("thalweg/engine/control/store/redis.py",), "an optional library; the rest works without it"),
    Choke(("mooncake",), ("thalweg/engine/control/store/mooncake.py",), "an optional library; the rest works without it"),
    Choke(("nixl",), ("thalweg/engine/control/store/nixl.py",), "an optional library; the rest works without it"),
    Choke(("jinja2",), ("thalweg/template/sandbox.py",), "templates run in one sandbox"),
    Choke(
        ("socket", "socketserver", "asyncio.start_server", "asyncio.start_unix_server", "asyncio.open_connection"),
        (
            "thalweg/engine/ipc/",
            "thalweg/engine/control/store/sockets.py",
            "thalweg/server/serve.py",
            "thalweg/server/http/listen.py",
            "thalweg/media/fetch.py",
        ),
        "one place opens sockets",
    ),
    Choke(
        ("http.client", "urllib.request", "httpx", "aiohttp"),
        ("thalweg/media/fetch.py", "thalweg/bench/", "thalweg/cli/", "thalweg/nano/"),
        "what a request names is fetched behind one gate",
    ),
    Choke(
        ("PIL", "av", "cv2", "imageio", "soundfile"),
        ("thalweg/media/decoders/", "thalweg/media/audio_files.py"),
        "media are decoded in processes with limits, and written in one place",
    ),
    Choke(
        (
            "subprocess",
            "multiprocessing",
            "asyncio.create_subprocess_exec",
            "asyncio.create_subprocess_shell",
            "os.system",
            "os.popen",
            "os.fork",
            "os.forkpty",
            "os.execv",
            "os.execve",
            "os.execvp",
            "os.posix_spawn",
            "os.spawnv",
        ),
        (
            "thalweg/host/processes.py",
            "thalweg/hal/testing/",
            "thalweg/bench/startup.py",
            "thalweg/bench/startup_plan.py",
            "thalweg/backends/cuda/flash4_compile.py",
        ),
        "one place starts processes; `thalweg compile` starts a linker",
    ),
    Choke(
        ("os.environ", "os.environb", "os.getenv", "os.putenv", "os.unsetenv"),
        (
            "thalweg/host/envs.py",
            "thalweg/backends/triton_kernels/testing.py",
            "thalweg/backends/torch_gpu/linear.py",
            "thalweg/backends/cuda/flash4_compile.py",
        ),
        "one file reads the environment; those of interpreted kernels and of libraries set others' switches",
    ),
    Choke(
        ("pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "torch.load", "numpy.load", "np.load"),
        (),
        "files and peers never choose what code runs",
    ),
    Choke(("eval", "exec", "__import__", "builtins.eval", "builtins.exec"), (), "no code is made from data"),
    Choke(
        ("importlib.import_module",),
        ("thalweg/__init__.py", "thalweg/plugins.py", "thalweg/cli/", "thalweg/backends/lean_torch.py"),
        "imports are written out, so that import rules see them; these load names of a table when first used",
    ),
)

PACKAGES = {
    "thalweg/hal/ops/": {"numpy", "torch"},
    "thalweg/hal/testing/": {"numpy", "torch", "pytest"},
    "thalweg/hal/": {"numpy"},
    "thalweg/backends/null/": {"numpy"},
    "thalweg/engine/worker/": {"numpy", "torch", "msgspec"},
    "thalweg/engine/ipc/publisher.py": {"zmq"},
    "thalweg/engine/control/store/redis.py": {"redis"},
    "thalweg/engine/control/store/lmcache.py": {"zmq", "msgspec"},
    "thalweg/engine/control/store/mooncake.py": {"mooncake"},
    "thalweg/engine/control/store/nixl.py": {"nixl", "numpy", "msgspec"},
    "thalweg/engine/executor/ray_cluster.py": {"ray"},
    "thalweg/engine/executor/launched.py": {"msgspec", "torch"},
    "thalweg/integrations/ray/": {"ray", "numpy", "starlette"},
    "thalweg/integrations/dynamo/worker.py": {"dynamo"},
    "thalweg/integrations/": {"starlette"},
    "thalweg/engine/": {"numpy", "msgspec"},
    "thalweg/grammar/compiled.py": {"llguidance"},
    "thalweg/grammar/": {"numpy", "msgspec"},
    "thalweg/text/": {"tokenizers", "msgspec", "transformers"},
    "thalweg/template/": {"jinja2", "msgspec"},
    "thalweg/media/": {"PIL", "av", "msgspec", "numpy", "soundfile"},
    "thalweg/checkpoint/": {"numpy", "huggingface_hub"},
    "thalweg/models/fallback/": {"torch", "transformers"},
    "thalweg/models/": {"numpy", "torch", "tqdm"},
    "thalweg/quantization/": {"numpy", "torch"},
}
"""Third-party packages a room may import; the first prefix that fits counts. Rooms not listed may use any dependency."""


def check(source: Source) -> Iterator[Finding]:
    yield from _sizes(source)
    if source.path.startswith("thalweg/"):
        yield from _chokes(source)
        yield from _packages(source)


def _chokes(source: Source) -> Iterator[Finding]:
    used = [(statement.lineno, name) for statement, name in imports(source.tree)]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute):
            used.append((node.lineno, dotted(node)))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            used.append((node.lineno, node.func.id))
        elif isinstance(node, ast.keyword) and node.arg in ("trust_remote_code", "allow_pickle", "shell") and _true(node.value):
            yield Finding(source.path, node.value.lineno, f"{node.arg}=True: code from files or text is never run")
    seen: set[tuple[int, str]] = set()
    for line, name in used:
        for choke in CHOKES:
            hit = next((n for n in choke.names if name == n or name.startswith(n + ".")), None)
            if hit and (line, hit) not in seen and not _at_home(source.path, choke.homes):
                seen.add((line, hit))
                where = " and ".join(choke.homes) or "nowhere"
                yield Finding(source.path, line, f"{hit} belongs {'in ' if choke.homes else ''}{where}: {choke.why}")


def _packages(source: Source) -> Iterator[Finding]:
    room = next((prefix for prefix in PACKAGES if source.path.startswith(prefix)), None)
    if room is None:
        return
    known = PACKAGES[room] | sys.stdlib_module_names | {"thalweg"}
    for statement, name in imports(source.tree):
        if isinstance(statement, ast.Import) or name == getattr(statement, "module", None):
            package = name.split(".")[0]
            if package not in known:
                yield Finding(source.path, statement.lineno, f"{room} may not use {package}; it has {sorted(PACKAGES[room])}")


def _true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _at_home(path: str, homes: tuple[str, ...]) -> bool:
    return any(path == h or (h.endswith("/") and path.startswith(h)) for h in homes)


def _sizes(source: Source) -> Iterator[Finding]:
    lines = source.text.count("\n")
    if lines > MAX_FILE_LINES:
        yield Finding(source.path, 1, f"{lines} lines; a file has at most {MAX_FILE_LINES}: it is asking to be two")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                message = f"{node.name} has {length} lines; a function has at most {MAX_FUNCTION_LINES}"
                yield Finding(source.path, node.lineno, message)


if __name__ == "__main__":
    sys.exit(main(check, "thalweg", "ci"))
