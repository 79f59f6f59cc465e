"""The tail of every step: from logits to tokens, the same for every model and device.

Order: changes of logits (`logits/`, in the order of `thalweg.features`), temperature, truncation, sampling.
`StepBatch.features` and the parts of the batch select the stages: both are static. Knows no model and no request.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from thalweg.features import all_features
from thalweg.hal import ops
from thalweg.hal.fields import Part
from thalweg.hal.op import Binder, BoundOp
from thalweg.hal.parts.drafts import Drafts
from thalweg.hal.step import SCRATCH, Features, Logprobs, SamplingArrays, StepBatch, StepResult
from thalweg.models.logits.change import LogitRows, LogitsProcessor
from thalweg.options.requests import LOGPROBS_MODES
from thalweg.plugins import import_attribute


class Sampler:
    """Binds its ops once; calls are pure."""

    def __init__(self, binder: Binder, *, vocab: int, logprobs_mode: str) -> None:
        if logprobs_mode not in LOGPROBS_MODES:
            raise ValueError(f"logprobs_mode: {logprobs_mode!r} is not one of {', '.join(LOGPROBS_MODES)}")
        self._processed = logprobs_mode.startswith("processed")
        self._normalise = logprobs_mode.endswith("logprobs")
        self._binder, self._facts = binder, {"vocab": vocab, "dtype": "float32"}
        self._changes: list[tuple[type[Part], LogitsProcessor]] = [
            (import_attribute(f.part), import_attribute(f.logits)(self._bind)) for f in all_features() if f.logits
        ]
        self._truncate = self._bind(ops.truncate)
        self._sample = {random: self._bind(ops.sample, random=random) for random in (False, True)}
        self._draw = binder.offer(ops.draw, **self._facts)
        """Temperature, truncation and draw in one, where the device has it."""
        self._logprobs: dict[int, BoundOp] = {}
        self._write = binder.bind(ops.history_write)
        self._emit = binder.offer(ops.emit_tokens)
        self._verify_drafts = binder.bind(ops.verify_drafts)

    def _bind(self, op: Any, **static: Any) -> BoundOp:
        return self._binder.bind(op, **self._facts, **static)

    def __call__(self, logits: Tensor, history: Tensor, batch: StepBatch) -> tuple[StepResult, Tensor]:
        """Sample one token per row: logits f32[S, V] of each sequence's last row, and with drafts f32[S + D, V]: then those
        of the row before each draft; history i32[slots, L], which must already hold this step's tokens. Returns the result
        (tokens [S, K]) and the history with the sampled tokens of the rows that emit. The noise of a row is that of the
        position its token will take, so a draft is right exactly if that token would have been sampled without it.

        Sequences with drafts have no part that changes logits without `Part.drafts`: the caller sees to that."""
        want, s, drafts = batch.features, batch.sampling, batch.get(Drafts)
        rows = LogitRows(history, batch.slots, batch.context + batch.query)
        if drafts is not None:
            rows = _with_drafts(rows, batch, drafts)
            s = SamplingArrays(**{f.name: rows.spread(getattr(s, f.name)) for f in fields(SamplingArrays)})
        position, shaped = rows.lengths, self._shape(logits, rows, batch)
        if self._draw is not None and not (self._processed and want.logprobs >= 0):
            tokens, most = self._draw(shaped, s.temperature, s.top_k, s.top_p, s.min_p, s.seed, position)
            chosen = self._gather_logprobs(logits, tokens, batch) if want.logprobs >= 0 else None
            return self.emit(tokens, most if shaped is logits else logits.amax(-1), history, batch, chosen)
        processed = self._scale(shaped, s.temperature, want)
        if want.truncate:
            processed = self._truncate(processed, s.top_k, s.top_p, s.min_p)
        tokens = self._sample[want.random](processed, s.temperature, s.seed, position)
        chosen = None
        if want.logprobs >= 0:
            chosen = self._gather_logprobs(processed if self._processed else logits, tokens, batch)
        return self.emit(tokens, logits.amax(-1), history, batch, chosen)

    def choose(self, logits: Tensor, batch: StepBatch, seed: Tensor, position: Tensor) -> Tensor:
        """One token per row of logits f32[S, V], with the rows' temperature and truncation. It is recorded nowhere. The noise
        is that of these seeds i32[S, 2] and positions i32[S]."""
        want, s = batch.features, batch.sampling
        scaled = self._scale(logits, s.temperature, want)
        if want.truncate:
            scaled = self._truncate(scaled, s.top_k, s.top_p, s.min_p)
        tokens: Tensor = self._sample[want.random](scaled, s.temperature, seed, position)
        return tokens

    def emit(
        self, tokens: Tensor, most: Tensor, history: Tensor, batch: StepBatch, logprobs: Logprobs | None = None
    ) -> tuple[StepResult, Tensor]:
        """The result and history of tokens i32[S], with drafts i32[S + D], that were chosen already. most: the largest logit
        of each row, NaN if one is."""
        drafts = batch.get(Drafts)
        if drafts is not None:
            return self._verify(tokens, most, history, batch, drafts, logprobs)
        if self._emit is not None:
            history, counts, invalid = self._emit(history, batch.slots, batch.context, batch.query, batch.emit, tokens, most)
            return StepResult(tokens[:, None], counts, logprobs=logprobs, invalid=invalid), history
        history = self._write(history, torch.where(batch.emit, batch.slots, SCRATCH), batch.context + batch.query, tokens)
        invalid = ~(most < float("inf"))  # true for NaN and for +inf
        return StepResult(tokens[:, None], batch.emit.to(torch.int32), logprobs=logprobs, invalid=invalid), history

    def _verify(
        self, tokens: Tensor, most: Tensor, history: Tensor, batch: StepBatch, drafts: Drafts, logprobs: Logprobs | None
    ) -> tuple[StepResult, Tensor]:
        """`emit` of a step with drafts."""
        guesses, lengths, pick = batch.tokens.index_select(0, drafts.row), batch.context + batch.query, drafts.pick
        found = self._verify_drafts(tokens, most, guesses, pick, batch.slots, lengths, batch.emit)
        chosen, counts, invalid, slots, positions = found
        history = self._write(history, slots, positions, chosen.flatten())
        if logprobs is not None:
            n = pick.shape[0]
            last = torch.arange(n, device=pick.device, dtype=torch.int32)[:, None]
            at = torch.where(pick < 0, last, pick + n).flatten()
            logprobs = Logprobs(*(a.index_select(0, at) for a in (logprobs.tokens, logprobs.values, logprobs.ranks)))
        return StepResult(chosen, counts, logprobs=logprobs, invalid=invalid), history

    def score(self, logits: Tensor, targets: Tensor, k: int) -> Logprobs:
        """Logprobs of known next tokens (of a prompt): logits f32[P, V] as the model gave them, targets i32[P]."""
        return self._best(logits, targets, k)

    def _shape(self, logits: Tensor, rows: LogitRows, batch: StepBatch) -> Tensor:
        """Penalties, bans, biases and masks, which do not depend on temperature."""
        n = batch.slots.shape[0]
        for kind, change in self._changes:
            part = batch.get(kind)
            if part is None:
                continue
            if kind.drafts or rows.owners is None:
                logits = change(logits, part, rows)
            else:
                logits = torch.cat([change(logits[:n], part, rows.only_last()), logits[n:]])
        return logits

    @staticmethod
    def _scale(logits: Tensor, temperature: Tensor, want: Features) -> Tensor:
        return logits / torch.where(temperature > 0, temperature, 1.0)[:, None] if want.random else logits

    def _gather_logprobs(self, logits: Tensor, tokens: Tensor, batch: StepBatch) -> Logprobs:
        return self._best(logits, tokens, batch.features.logprobs)

    def _best(self, logits: Tensor, tokens: Tensor, k: int) -> Logprobs:
        bound = self._logprobs.get(k)
        if bound is None:
            bound = self._logprobs[k] = self._bind(ops.logprobs, k=k, normalise=self._normalise)
        ids, values, ranks = bound(logits, tokens)
        return Logprobs(ids, values, ranks)


def _with_drafts(last: LogitRows, batch: StepBatch, drafts: Drafts) -> LogitRows:
    """The last row of each sequence, then the row before each draft."""
    owners, position = (a.index_select(0, drafts.row) for a in (batch.token_seq, batch.positions))
    slots = torch.cat([last.slots, last.slots.index_select(0, owners)])
    return LogitRows(last.history, slots, torch.cat([last.lengths, position]), owners)
