"""Proposers: tails of a step that propose drafts on the device. The next step verifies them like any other.

The host side is a `Drafter` that names its proposer (`engine.control.speculation.drafter`). A proposer reads hidden states of
layers that it taps and the tokens that the step accepted. Counts of accepted tokens are values and never shapes, so a step with
a proposer is recorded, captured and compiled like others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from thalweg.drafters import SpeculationConfig
from thalweg.hal.attention import AttentionBackend
from thalweg.hal.comm import Mesh
from thalweg.hal.device import Device
from thalweg.hal.kv import KVLayout
from thalweg.hal.op import Binder
from thalweg.hal.parts.drafts import Drafts
from thalweg.hal.step import Array, Params, State, StepBatch
from thalweg.models.drafts.declared import DraftModel

KEY = "proposer"
"""Under which a proposer's arrays lie in the parameters and in the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerSetup:
    """The facts a proposer may be made of."""

    model: Any
    """A `models.build.Model`: the target."""
    binder: Binder
    """For the proposer's ops."""
    config: SpeculationConfig
    attention: Sequence[AttentionBackend]
    mesh: Mesh
    max_len: int
    block_tokens: int
    load_format: str
    seed: int
    draft: DraftModel | None = None
    """The declaration of the drafter's own layers, if it has some."""
    ranks: Sequence[int] = (0,)
    """Those of the mesh that the device computes."""


class Proposer(ABC):
    """Made once, with the model. Holds no arrays: parameters and state are passed."""

    taps: tuple[int, ...] = ()
    """Layers after which it reads the hidden states, or other places of `drafts.taps`."""

    caches: tuple[tuple[int, KVLayout | tuple[KVLayout, ...]], ...] = ()
    """(KV group of the model, layout of a block) of caches on the blocks of that group. State `kv` holds their arrays, or
    tuples of arrays where there are several layouts."""

    remembers = True
    """Does it keep something of every token? Then it lacks the tokens of steps without it. False: it may begin at any."""

    @classmethod
    def of(cls, setup: ProposerSetup) -> Self:
        """Raises ConfigError for an incompatible model. Default: made of the model, the binder and the configuration."""
        return cls(setup.model, setup.binder, setup.config)

    def __init__(self, model: Any, binder: Binder, config: SpeculationConfig) -> None:
        """model: a `models.build.Model`. binder: for the proposer's ops. Raises ConfigError for an incompatible model.
        Subclasses keep the arguments that they need."""
        self.most = config.tokens
        """K: drafts of a sequence."""

    def load(self, device: Device) -> Mapping[str, Any]:
        """Its parameters on the device. Default: none."""
        return {}

    def allocate(self, device: Device, slots: int, max_len: int) -> Mapping[str, Any]:
        """The proposer's arrays between steps. slots: scratch included. Default: nothing."""
        return {}

    @abstractmethod
    def propose(
        self, params: Params, state: State, batch: StepBatch, taps: tuple[Array, ...], tokens: Array, counts: Array
    ) -> tuple[Array, State]:
        """(drafts i32[S, K], the state): tokens that may follow each sequence, in order. -1 ends them. K is the level of the
        part `Proposing`, or `most`.

        params, state: of the whole step, the proposer's under KEY. The state has this step's keys, values and history. batch
        has that part, and all token ids are known. taps: [T, hidden] at each place of
        `taps`. tokens, counts: as in StepResult, i32[S, 1 + drafts verified] and i32[S]. Drafts of sequences with count 0 are
        not read."""


def accepted_row(batch: StepBatch, counts: Array) -> Array:
    """i32[S]: the row in T of each sequence's last token that was accepted. The tokens of the step's result follow it."""
    drafts = batch.get(Drafts)
    if drafts is None:
        return batch.last_row
    rejected = (drafts.pick >= 0).sum(1) - (counts - 1).clamp(min=0)
    return (batch.last_row - rejected).to(batch.last_row.dtype)


def last_token(tokens: Array, counts: Array) -> Array:
    """i32[S]: the last token that the step returns of each sequence."""
    return tokens.gather(1, (counts - 1).clamp(min=0).long()[:, None])[:, 0]
