"""Put first on PYTHONPATH, this records in every Python process what a serving process must not do (or only at its start).

CHAOS_AUDIT names the file that gets one line per event: monotonic seconds, process, event, argument.
"""

import os
import sys
import time

WATCHED = frozenset(
    (
        "pickle.find_class", "marshal.loads", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn",
        "os.fork", "os.forkpty", "pty.spawn", "socket.bind", "socket.connect", "ctypes.dlopen",
    )
)  # fmt: skip


def _watch(path: str) -> None:
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def hook(event: str, args: tuple[object, ...]) -> None:
        weights = event == "open" and str(args[0]).endswith(".safetensors")
        if event in WATCHED or weights:
            what = "" if event == "marshal.loads" else str(args)[:200].replace("\n", " ")
            os.write(out, f"{time.monotonic()} {os.getpid()} {event} {what}\n".encode())

    sys.addaudithook(hook)


if os.environ.get("CHAOS_AUDIT"):
    _watch(os.environ["CHAOS_AUDIT"])
