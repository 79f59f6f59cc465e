"""An engine for tests of benchmarks.peers: its next token is the sum of the last two, modulo 97. It prints to standard output
as it loads, as engines do. Flags in the settings make it misbehave."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "peers" / "drivers"))

from protocol import Loaded, serve

CHILD = "import time; x = b'x' * (64 << 20); print('up', flush=True); time.sleep(60)"


def load(s: dict) -> Loaded:
    print("words an engine prints")
    if s.get("fails"):
        raise ValueError("no such weights")
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()

    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        time.sleep(s.get("delay", 0) + new * s.get("step", 0))
        out = []
        for p in prompts:
            tokens = list(p[-2:])
            for _ in range(new - s.get("short", 0)):
                tokens.append((tokens[-1] + tokens[-2]) % 97)
            out.append(tokens[2:])
        return out

    Path(s["pid_file"]).write_text(str(child.pid))
    return Loaded(generate, {"fake": "1.0"}, {"fast": True}, child.kill if s.get("tidy") else lambda: None)


if __name__ == "__main__":
    serve(load)
