"""Output matrices of drafters: the target's, or their own with rows for some of the target's tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thalweg.checkpoint.weights import TensorHeaders
from thalweg.errors import CheckpointError
from thalweg.hal.device import Device

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


def put_tokens(device: Device, path: Path, count: int, vocab: int, *, dummy: bool = False) -> Any:
    """The same on the device."""
    return device.put(read_tokens(path, count, vocab, dummy=dummy))


def spread_logits(logits: Tensor, tokens: Tensor, vocab: int) -> Tensor:
    """[N, vocab]: logits [N, count] at the target's tokens i64[count], and -inf at others. So draws use the noise of the
    target's tokens."""
    wide = torch.full((logits.shape[0], vocab), -torch.inf, dtype=logits.dtype, device=logits.device)
    return wide.index_copy(1, tokens, logits)
