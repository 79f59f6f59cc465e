"""Short prompts are filled up to lengths that come again, and recorded: the same text as prompts run as they are written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from thalweg import LLM, SamplingParams
from thalweg.backends.cpu.native import levels
from thalweg.backends.cpu.prompts import EVERY, MOST, fill_chunk
from thalweg.backends.cpu.recording import RecordingExecutable
from thalweg.engine.control.speculation.gain import Gain
from thalweg.hal.parts.axes import Axes
from thalweg.hal.step import SamplingArrays, StepBatch

LONGEST = 96
LENGTHS = (3, 9, 10, 12, 17, 9, 10, 90, 94, 92, 95, 93, 16, 12, 10, 91)
"""Of prompts. Some share a filled length, and the last tokens of some are the last that a sequence may have."""


def _serve(drafts: dict[str, Any] | None, seen: list[int], chunk: int = 64) -> list[list[int]]:
    rng = np.random.default_rng(4)
    llm = LLM(device="cpu", max_model_len=LONGEST, max_num_seqs=2, max_num_batched_tokens=chunk, use_tqdm_on_load=False,
              speculative_config=drafts, block_size=16)  # fmt: skip
    try:
        out = []
        for i, n in enumerate(LENGTHS):
            sampling = SamplingParams(max_tokens=min(9, LONGEST - n), ignore_eos=True, temperature=i % 2 / 2, seed=i)
            prompt = {"prompt_token_ids": rng.integers(10, 500, n).tolist()}
            out.append(list(llm.generate(prompt, sampling, use_tqdm=False)[0].outputs[0].token_ids))
        return out
    finally:
        llm.shutdown()


@pytest.mark.slow
@pytest.mark.skipif(not levels(), reason="no compiled kernels")
def test_filled_prompts_say_what_others_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gain, "allows", lambda self, streams: True)
    replayed: list[int] = []
    replay = RecordingExecutable._replay

    def watch(self: Any, tape: Any, arrays: Any) -> Any:
        replayed.append(0 if tape.held[0].uniform else tape.held[0].tokens.shape[0])
        return replay(self, tape, arrays)

    monkeypatch.setattr(RecordingExecutable, "_replay", watch)
    said = [_serve(drafts, replayed) for drafts in (None, {"method": "mtp", "num_speculative_tokens": 3})]
    assert {n for n in replayed if n} >= {16, 32}, "prompts and last chunks were replayed"
    monkeypatch.setattr(RecordingExecutable, "__call__", lambda self, batch: self._eager(batch))
    assert said[0] == said[1] == _serve(None, replayed)


def _chunk(tokens: int, context: int = 0, **more: Any) -> StepBatch:
    ids = np.arange(tokens, dtype=np.int32)
    values = {"slots": 1, "context": context, "query": tokens, "last_row": tokens - 1}
    one = {name: np.array([value], np.int32) for name, value in values.items()}
    return StepBatch(
        tokens=ids, token_seq=0 * ids, positions=ids + np.int32(context), emit=np.ones(1, np.bool_),
        block_tables=(np.array([[5, 6]], np.int32),), sampling=SamplingArrays.greedy(1), **one, **more,
    )  # fmt: skip


def test_a_filled_chunk_counts_on_and_keeps_its_last_row() -> None:
    filled = fill_chunk(_chunk(13, context=20), longest=100)
    assert filled is not None
    assert filled.positions.tolist() == list(range(20, 36))
    assert (int(filled.query[0]), int(filled.last_row[0]), int(filled.context[0])) == (13, 12, 20)
    assert filled.block_tables[0][0, :2].tolist() == [5, 6]
    assert not filled.block_tables[0][0, 2:].any(), "the tokens behind go to scratch"
    assert filled.block_tables[0].shape[1] >= 2 + EVERY - 1, "whatever a block holds"


@pytest.mark.parametrize(
    ("batch", "longest"),
    [(_chunk(13, context=20), 35), (_chunk(MOST + 1), 4096), (_chunk(13, uniform=13), 100),
     (_chunk(13, parts=(Axes.blank({"T": 13, "axes": 3}),)), 100), (_chunk(13, metadata=({"spans": (1,)},)), 100)],
)  # fmt: skip
def test_what_is_not_filled(batch: StepBatch, longest: int) -> None:
    """Chunks that would reach past the longest sequence, long ones, and those with arrays by token or plans of their values."""
    assert fill_chunk(batch, longest) is None
