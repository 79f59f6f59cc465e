"""Output matrices of drafters: the target's, or their own with rows for some of the target's tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thalweg.checkpoint.weights import TensorHeaders
from thalweg.errors import CheckpointError
from thalweg.hal.device import Device
from thalweg.hal.step import StepBatch
from thalweg.models.build import Model
from thalweg.models.decoder import Decoder
from thalweg.models.layered_proposer import LayeredProposer
from thalweg.models.proposer import KEY, ProposerSetup

TOKENS = "tokens"
"""Key of the parameter i64[vocab of the drafter]: the target's tokens."""
OFFSETS = "d2t"
"""The tensor with the target's token of each of the drafter's, less the latter."""


def read_tokens(path: Path, count: int, vocab: int, *, dummy: bool = False) -> Tensor:
    """i64[count]: the target's token of each of the drafter's. vocab: tokens of the target. dummy: the checkpoint is not read.
    CheckpointError: the tensor is missing, or its tokens are not different tokens of the target."""
    own = torch.arange(count)
    if dummy:
        return own
    files = TensorHeaders(path)
    name = next((n for n in files if n.removeprefix("model.") == OFFSETS), None)
    if name is None:
        raise CheckpointError(f"{path}: lacks {OFFSETS}, which maps {count} draft tokens to the target's {vocab}")
    dtype, shape = files[name]
    if dtype not in ("int64", "int32") or shape != (count,):
        raise CheckpointError(f"{path}: {name} is {dtype} {list(shape)}; it must have {count} whole numbers (draft_vocab_size)")
    tokens = own + torch.from_numpy(files.read(name).copy()).to(torch.int64)
    if int(tokens.min()) < 0 or int(tokens.max()) >= vocab or len(set(tokens.tolist())) < count:
        raise CheckpointError(f"{path}: {name} must map draft tokens to different tokens of the target's {vocab}")
    return tokens


class MappedHead:
    """An output matrix with rows for some of the target's tokens, as one over all of them. The logits of others are -inf. So
    draws use the noise of the target's tokens."""

    def __init__(self, head: Model, vocab: int) -> None:
        """vocab: tokens of the target."""
        self._head, self.vocab, self.has_argmax = head, vocab, head.has_argmax

    def argmax(self, params: Any, x: Tensor) -> tuple[Tensor]:
        """As of a decoder, the tokens only."""
        return (params[TOKENS].index_select(0, self._head.argmax(params, x)[0].long()),)

    def logits(self, params: Any, x: Tensor) -> Tensor:
        """x [N, hidden] -> [N, vocab]"""
        return widen(params, self._head.logits(params, x), self.vocab, -torch.inf)


def widen(params: Any, found: Tensor, vocab: int, other: float) -> Tensor:
    """Values [N, tokens of the drafter] -> [N, vocab], with `other` for all other tokens of the target."""
    wide = torch.full((found.shape[0], vocab), other, dtype=found.dtype, device=found.device)
    return wide.index_copy(1, params[TOKENS], found)


class DraftHeadProposer(LayeredProposer):
    """With an output matrix that is the target's or the drafter's, and then may have rows for some tokens only."""

    _spec: Any
    """Of the drafter: with `has_head` and `mapped`."""

    def __init__(self, setup: ProposerSetup, module: Decoder) -> None:
        self._spec, self._model = module.spec, setup.model
        head = module if self._spec.has_head else setup.model
        super().__init__(setup, module, MappedHead(head, setup.model.vocab) if self._spec.mapped else head)

    def load(self, device: Device) -> Mapping[str, Any]:
        params, setup = dict(super().load(device)), self._setup
        if self._spec.mapped:
            assert setup.draft is not None
            dummy = setup.load_format == "dummy"
            params[TOKENS] = device.put(read_tokens(setup.draft.path, self._spec.vocab, self._model.vocab, dummy=dummy))
        return params

    def _choose(self, params: Any, x: Tensor, batch: StepBatch, position: Tensor) -> Tensor:
        """As `LayeredProposer._choose`. params: of the target."""
        return super()._choose(params[KEY] if self._spec.has_head else params, x, batch, position)
