"""A child process that serves a model until its cache has been filled, and says what it holds. Argument: EngineArgs as JSON.

Prints {"loaded": bytes, "all": bytes}: growth of the process's own memory (RssAnon) over what it held once the device was
open and the framework warm; after loading, and at the most while prompts fill every block and every row samples. Blocks of
memory that a step allocates may be given back before it ends, so another thread looks on meanwhile.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import threading
from pathlib import Path

import msgspec
import numpy as np

from thalweg.config import EngineArgs
from thalweg.engine.control.core import EngineCore
from thalweg.engine.executor.inline import InlineExecutor
from thalweg.engine.messages import EngineRequest, TokenSampling
from thalweg.engine.worker.build import build


def held() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no RssAnon")


class Watch(threading.Thread):
    """The most that this process held while it was watched."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = held()
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.001):
            self.most = max(self.most, held())

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
        self.most = max(self.most, held())


def warm(args: EngineArgs, folder: Path) -> None:
    """Whatever the framework allocates when it is first used: a tiny model is served first."""
    config = json.loads((Path(args.model) / "config.json").read_text())
    tiny = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16}
    (folder / "config.json").write_text(json.dumps({**config, **tiny, "num_hidden_layers": 2, "vocab_size": 256}))
    serve(msgspec.structs.replace(args, model=str(folder), kv_cache_memory_bytes=4 << 20))


def serve(args: EngineArgs) -> tuple[int, int]:
    """(held once loaded, most held while the cache is filled twice)."""
    worker = build(args)
    loaded = held()
    config = worker.config
    core = EngineCore(InlineExecutor(worker))
    rng = np.random.default_rng(0)
    tokens = (config.cache.blocks[0] - 1) * config.cache.block_tokens
    seqs = config.scheduler.max_seqs
    length = min(config.model.max_len - 8, tokens // seqs - 8)
    sampling = TokenSampling(max_tokens=8, temperature=1.0, top_p=0.9)
    with Watch() as watch:
        for turn in range(2):
            prompts = [rng.integers(0, config.model.vocab, length).astype(np.int32) for _ in range(seqs)]
            first = turn * seqs + 1
            core.add(
                [EngineRequest(handle=first + i, tokens=p, prompt_len=length, sampling=sampling) for i, p in enumerate(prompts)]
            )
            while core.has_work:
                core.step()
    return loaded, watch.most


def main() -> None:
    args = EngineArgs(**json.loads(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        warm(args, Path(folder))
    gc.collect()
    before = held()
    loaded, most = serve(args)
    print(json.dumps({"loaded": loaded - before, "all": most - before}))


if __name__ == "__main__":
    main()
