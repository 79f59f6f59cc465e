"""A model driven by hand: sequences, chunks and steps chosen by the test, without an engine. For tests of models/.

Caches of recurrent layers begin full of NaN. A sequence has three blocks of each and writes to them in turn, every third step
to the one that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.checkpoint.config import read_config
from thalweg.hal.comm import SOLO, Mesh, StageLinks
from thalweg.hal.device import Device, Pending
from thalweg.hal.discovery import load
from thalweg.hal.op import Binder
from thalweg.hal.parts.adapters import Adapters
from thalweg.hal.parts.scores import Scores
from thalweg.hal.parts.sparse import Sparse
from thalweg.hal.platform import Place
from thalweg.hal.step import ON_DEVICE, SamplingArrays, StateBox, StepBatch, StepResult
from thalweg.models.adapters import AdapterPlan
from thalweg.models.build import build
from thalweg.models.load import load_params
from thalweg.models.registry import declare
from thalweg.models.step import STAGE, make_state, make_step


@dataclass
class Seq:
    """One sequence: its prompt, what was generated, and how much of both is in the cache."""

    slot: int
    tokens: list[int]
    prompt: int
    done: int = 0
    scores: list[float] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Rig:
    """One model on one device, every sequence with its own shuffled blocks."""

    def __init__(
        self, path: Path, *, dtype: str = "float32", platform: str = "reference", max_len: int = 64, block: int = 4,
        slots: int = 9, invariant: bool = False, impl: str = "auto", adapters: AdapterPlan | None = None,
        device: Device | None = None, rank: int = 0, expert_parallel: bool = False,
        stage: StageLinks | None = None, stage_layers: Sequence[int] | None = None, tp_invariant: bool = False,
    ) -> None:  # fmt: skip
        """device: one that is open. rank: of those that its communicator joins. expert_parallel: they hold experts whole.
        stage: of a model divided into several, with these layers each. tp_invariant: as in `build`."""
        self.device = device or load(platform).open(Place())
        binder = Binder(self.device.kernels, batch_invariant=invariant)
        comm = self.device.comm
        self.model = build(
            declare({**read_config(path), "model_impl": impl}, path)[0], binder=binder, attention=self.device.attention,
            mesh=Mesh(comm, expert=comm if expert_parallel else SOLO, stage=stage or StageLinks()), dtype=dtype,
            max_len=max_len, block_tokens=block, adapters=adapters, stage_layers=stage_layers,
            tp_invariant=tp_invariant,
        )  # fmt: skip
        ranks = (rank,) if device else range(self.device.comm.size)
        self.params = load_params(self.model, path, self.device, progress=False, ranks=ranks)
        width = -(-max_len // block)
        blocks = (slots - 1) * width + 1
        state = make_state(
            self.model, self.device, blocks=[blocks] * len(self.model.groups), slots=slots, max_len=max_len,
            tokens=256 if stage else 0,
        )  # fmt: skip
        self.box = StateBox(state)
        for layout, cache in zip(self.model.layouts, state["kv"], strict=True):
            for part in cache if isinstance(layout, tuple) else ():
                part.fill_(float("nan"))
        rng = np.random.default_rng(7)
        self.tables = [1 + rng.permutation(blocks - 1).astype(np.int32).reshape(-1, width) for _ in self.model.groups]
        self.steps = np.zeros(slots, np.int64)
        self.adapter_of: dict[int, int] = {}
        """Of a sequence's slot: where its adapter lies. Others have none."""
        self.adapter_level = 0
        """As `Adapters` has it."""
        self.run = self.device.compile(
            make_step(self.model, binder, logprobs_mode="raw_logprobs"), self.params, self.box, None, None
        )

    def batch(self, work: Sequence[tuple[Seq, int]], score: bool = False) -> StepBatch:
        """A mixed batch: each sequence with how many of its next tokens to compute."""
        query = np.array([n for _, n in work], np.int32)
        context = np.array([s.done for s, _ in work], np.int32)
        start = np.cumsum(query) - query
        positions = np.arange(query.sum()) - np.repeat(start - context, query)
        known = [s.tokens[s.done : s.done + n] for s, n in work]
        rows, targets = [], []
        for (s, n), first in zip(work, start, strict=True) if score else ():
            for i in range(n):
                if s.done + i + 1 < s.prompt:
                    rows.append(first + i)
                    targets.append(s.tokens[s.done + i + 1])
        slots = np.array([s.slot for s, _ in work], np.int32)
        out = StepBatch(
            tokens=np.array([t for k in known for t in k], np.int32),
            token_seq=np.repeat(np.arange(len(work)), query).astype(np.int32),
            positions=positions.astype(np.int32),
            slots=slots,
            context=context,
            query=query,
            last_row=(np.cumsum(query) - 1).astype(np.int32),
            emit=np.array([s.done + n == len(s.tokens) for s, n in work]),
            block_tables=tuple(self._table(g, t[slots - 1], slots) for g, t in enumerate(self.tables)),
            sampling=SamplingArrays.greedy(len(work)),
            parts=(Scores(np.array(rows, np.int32), np.array(targets, np.int32)),) if rows else (),
        )
        out.check()
        top = max(g.top for g in self.model.groups)
        if top and (sparse := Sparse.of(context, query, top)) is not None:
            out.parts = (*out.parts, sparse)
        if used := [self.adapter_of.get(int(slot), 0) for slot in slots]:
            out.parts = (*out.parts, Adapters(np.array(used, np.int32), level=self.adapter_level)) if any(used) else out.parts
        out.features = out.infer_features(logprobs=0)
        out.metadata = self.model.metadata(out, None)
        self.steps[slots] += 1
        return out

    def _table(self, group: int, table: np.ndarray, slots: np.ndarray) -> np.ndarray:
        if self.model.groups[group].kind != "state":
            return table
        written, now = self.steps[slots] * 2 // 3 % 3, (self.steps[slots] + 1) * 2 // 3 % 3
        each = np.arange(slots.size)
        return np.stack([table[each, written], table[each, now]], axis=1)

    def step(self, work: Sequence[tuple[Seq, int]], score: bool = False) -> StepResult:
        batch = self.batch(work, score)
        result = self.run(batch).result()
        scores = batch.get(Scores)
        for row, target_row in enumerate(() if scores is None else scores.row):
            work[int(batch.token_seq[target_row])][0].scores.append(float(result.score.values[row, 0]))
        for i, (s, n) in enumerate(work):
            s.done += n
            if batch.emit[i]:
                assert result.counts[i] == 1
                s.tokens.append(int(result.tokens[i, 0]))
                s.logprobs.append(float(result.logprobs.values[i, 0]))
        return result

    def generate(self, prompts: Sequence[Sequence[int]], new: int, chunk: int, budget: int) -> list[Seq]:
        """Greedy, with prefill in chunks mixed with other sequences' decodes: sequences start one step after another."""
        seqs = [Seq(i + 1, list(p), len(p)) for i, p in enumerate(prompts)]
        started = 1
        while any(len(s.tokens) < s.prompt + new for s in seqs):
            work, left = [], budget
            for s in seqs[:started]:
                n = min(chunk, left, len(s.tokens) - s.done)
                if len(s.tokens) < s.prompt + new and n:
                    work.append((s, n))
                    left -= n
            self.step(work, score=True)
            started = min(started + 1, len(seqs))
        return seqs


class StagedRig(Rig):
    """The last stage. Those before it run first, and hand over what leaves them."""

    def __init__(self, path: Path, stages: int, sizes: Sequence[int] | None = None, **more: Any) -> None:
        """sizes: as `stages.partition` has them."""
        *links, last = (StageLinks(i, stages) for i in range(stages))
        self.earlier = [Rig(path, stage=link, stage_layers=sizes, **more) for link in links]
        super().__init__(path, stage=last, stage_layers=sizes, **more)
        self.chain = [*self.earlier, self]
        self.run_last, self.run = self.run, self._run_all

    def _run_all(self, batch: StepBatch) -> Pending:
        for here, behind in pairwise(self.chain):
            here.run(batch).result()
            behind.box.value[STAGE]["enter"].copy_(here.box.value[STAGE]["leave"])
        return self.run_last(batch)


__all__ = ["ON_DEVICE", "Rig", "Seq", "StagedRig"]
