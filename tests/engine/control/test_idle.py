"""What an engine does while it has no work: memory for the cache's next blocks, a piece at a time, and nobody waits for it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loop_rig import Wire, until_closed

from thalweg.config import EngineArgs
from thalweg.engine.control.core import EngineCore
from thalweg.engine.executor.inline import InlineExecutor
from thalweg.engine.main import _Loop, _Words
from thalweg.engine.messages import Add, EngineRequest, TokenSampling
from thalweg.engine.worker.build import build
from thalweg.engine.worker.stages.cache import POPULATED
from thalweg.grammar.grammars import Grammars

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 200, "hidden_act": "silu",
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
}  # fmt: skip


def request(handle: int, tokens: int) -> EngineRequest:
    sampling = TokenSampling(max_tokens=3, temperature=0.0)
    return EngineRequest(handle=handle, tokens=np.arange(tokens, dtype=np.int32), prompt_len=tokens, sampling=sampling)


def test_the_device_is_told_which_blocks_of_every_layer_come_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    worker = build(
        EngineArgs(model=str(tmp_path), device="cpu", load_format="dummy", kv_cache_memory_bytes=4 << 20, dtype="float32")
    )
    told: list[list[tuple[Any, range]]] = []
    monkeypatch.setattr(worker.device, "populate", lambda caches: bool(told.append(caches)))
    core = EngineCore(InlineExecutor(worker))
    assert not core.idle()
    block = worker.config.cache.block_tokens
    assert [c.shape[0] for c, _ in told[0]] == list(worker.config.cache.blocks) * 3
    assert [ahead for _, ahead in told[0]] == [range(1, 1 + POPULATED // block)] * 3  # block 0 is scratch
    core.add([request(1, 5 * block)])
    while core.has_work:
        core.step()
    core.idle()
    assert [ahead.start for _, ahead in told[1]] == [7] * 3
    worker.close()


class Scripted:
    """A core with `pieces` to do while it is idle, and one step to do for a message."""

    def __init__(self, pieces: int) -> None:
        self.pieces, self.left = pieces, 0
        self.did: list[str] = []
        self.halfway, self.go_on = threading.Event(), threading.Event()

    can_regroup = False

    def watch(self, lost: object) -> None:
        """It is its own executor, and loses no rank."""

    @property
    def has_work(self) -> bool:
        return self.left > 0

    def add(self, requests: object) -> None:
        self.left += 1

    def step(self) -> None:
        self.left -= 1
        self.did.append("step")

    def idle(self) -> bool:
        if not self.pieces:
            self.did.append("nothing")
            return False
        self.pieces -= 1
        self.did.append("piece")
        if self.pieces == 2:
            self.halfway.set()
            self.go_on.wait()
        return True


def test_a_request_that_comes_meanwhile_waits_for_one_piece_alone() -> None:
    core, wire, words = Scripted(5), Wire(), _Words()
    loop = _Loop(core, lambda: core, wire, Grammars(words.get), words)  # type: ignore[arg-type]
    inbox = loop._inbox
    thread = threading.Thread(target=until_closed, args=(loop,))
    thread.start()
    core.halfway.wait()
    wire.said.put(Add([request(1, 1)]))
    while inbox.empty():  # the reader hands it over
        time.sleep(0.001)
    core.go_on.set()
    while "nothing" not in core.did:
        time.sleep(0.001)
    wire.said.put(None)
    thread.join()
    assert core.did == ["piece"] * 3 + ["step"] + ["piece"] * 2 + ["nothing"]
