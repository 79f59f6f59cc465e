"""Greedy transcripts of an encoder's states. Each is f32[n]: the number of tokens, then their ids, log-probabilities, first
frames and the frames after their last (`spec.transcript`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.ops.activation import activate
from thalweg.hal.step import Array
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.spec.transcript import COLUMNS, transcript_width
from thalweg.models.vision.bound_parts import BoundParts

Parts = Mapping[str, Any]
NO_NORM = spec.LayerNorm("", 1, 1e-5)


class CTCTranscriber:
    """x [T, hidden] -> f32[n]."""

    def __init__(self, ctx: Context, s: spec.CTCHead, weights: Parts, frames: int) -> None:
        """frames: of the longest clip."""
        self._spec, self._most = s, frames * s.per_frame
        self._parts = BoundParts(ctx, weights, NO_NORM)
        self.specs = self._parts.specs

    def __call__(self, p: Parts, x: Array) -> Array:
        """A token's log-probability is the mean of its frames'."""
        logits = self._parts.linear("/out", p["out"], x).float()
        best = logits.argmax(-1)
        known = logits.log_softmax(-1).gather(1, best[:, None])[:, 0]
        begins = torch.ones_like(best, dtype=torch.bool)
        begins[1:] = best[1:] != best[:-1]
        begin = begins.nonzero()[:, 0]
        end = torch.cat([begin[1:], begin.new_full((1,), len(x))])
        ids = best[begin]
        total = torch.zeros(len(begin), device=x.device).index_add(0, begins.cumsum(0) - 1, known)
        rows = torch.stack([ids.float(), total / (end - begin), begin.float(), end.float()], 1)[ids != self._spec.blank]
        return _write_rows(rows, self._most)


class TransducerTranscriber:
    """The same. The loop over frames runs on the host, as each prediction depends on the one before."""

    def __init__(self, ctx: Context, s: spec.TransducerHead, weights: Parts, frames: int) -> None:
        """frames: of the longest clip."""
        self._spec, self._most = s, frames * s.per_frame
        self._parts = BoundParts(ctx, weights, NO_NORM)
        self.specs = self._parts.specs

    def __call__(self, p: Parts, x: Array) -> Array:
        s, at, here = self._spec, 0, 0
        x = self._parts.linear("/enter", p["enter"], x)
        zeros = x.new_zeros(s.layers, 1, s.hidden)
        seen, state = self._predict(p, s.blank, (zeros, zeros))
        rows: list[tuple[float, float, float, float]] = []
        while at < len(x) and len(rows) < self._most:
            logits = self._parts.linear("/out", p["out"], activate(x[at : at + 1] + seen, s.act))[0].float()
            labels = logits[: s.labels]
            token = int(labels.argmax())
            if s.durations:
                step = s.durations[int(logits[s.labels :].argmax())]
                step = max(step, 1) if token == s.blank else step
            else:
                here = 0 if token == s.blank else here + 1
                step = int(token == s.blank or here >= s.most)
                here = 0 if step else here
            if token != s.blank:
                known = float(labels[token] - labels.logsumexp(0))
                rows.append((token, known, at, at + (step if s.durations else 1)))
                seen, state = self._predict(p, token, state)
            at += step
        found = torch.tensor(rows, dtype=torch.float32, device=x.device).view(-1, COLUMNS)
        return _write_rows(found, self._most)

    def _predict(self, p: Parts, token: int, state: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        """([1, hidden] for the joint network, the LSTM's states after this token)."""
        x, hidden, cell = p["table"][token : token + 1], [], []
        for i in range(self._spec.layers):
            w = p["lstm"][i]
            gates = functional.linear(x, w["input"], w["input_bias"])
            gates = gates + functional.linear(state[0][i], w["state"], w["state_bias"])
            enter, forget, new, leave = gates.chunk(4, -1)
            c = forget.sigmoid() * state[1][i] + enter.sigmoid() * new.tanh()
            x = leave.sigmoid() * c.tanh()
            hidden.append(x)
            cell.append(c)
        return self._parts.linear("/join", p["join"], x), (torch.stack(hidden), torch.stack(cell))


def build_transcriber(
    ctx: Context, s: spec.TranscriptHead, weights: Parts, frames: int
) -> CTCTranscriber | TransducerTranscriber:
    """frames: of the longest clip."""
    if isinstance(s, spec.CTCHead):
        return CTCTranscriber(ctx, s, weights, frames)
    return TransducerTranscriber(ctx, s, weights, frames)


def _write_rows(rows: Array, most: int) -> Array:
    """rows f32[N, COLUMNS] -> f32[n]."""
    out = torch.zeros(transcript_width(most), device=rows.device)
    rows = rows[:most]
    out[0] = len(rows)
    out[1 : 1 + rows.numel()] = rows.flatten()
    return out
