"""A drafter that breaks its contract: texts stay, the engine goes on, and no wrong token enters a step."""

from __future__ import annotations

import numpy as np
import pytest
from world import Guesser, World, make_config

from thalweg.engine.control.speculation.drafter import Proposals
from thalweg.engine.control.speculation.guard import GuardedDrafter
from thalweg.engine.messages import EngineRequest, TokenSampling

VOCAB, MOST = 40, 4


class Faulty(Guesser):
    """Proposes what a test wants."""

    fault: str

    def propose(self, slots, most) -> Proposals:
        n = slots.size
        if self.fault == "raises":
            raise RuntimeError("a fault of a package")
        if self.fault == "none":
            return None
        made = {"long": [1] * 200, "outside": [1, VOCAB, 1], "negative": [-5]}.get(self.fault, [1, 1])
        tokens, counts = np.array(made * n, np.int32), np.full(n, len(made), np.int32)
        return Proposals(tokens * 1.5 if self.fault == "fractions" else tokens, counts[1:] if self.fault == "few" else counts)

    def is_promising(self, slots):
        return np.ones(slots.size, bool)


@pytest.mark.parametrize("fault", ["raises", "none", "fractions", "few", "long", "outside", "negative"])
def test_a_faulty_drafter_changes_no_text_and_ends_nothing(fault: str) -> None:
    w = World(make_config(vocab=VOCAB, max_len=96, blocks=80, depth=2), drafts=MOST)
    w.batch_log = []
    drafter = Faulty(w, w.core.slots, MOST, 1.0)
    drafter.fault = fault
    guarded = w.core.scheduler.speculator.drafter = GuardedDrafter(drafter, "faulty", VOCAB)
    w.core.scheduler.speculator.gain.allows = lambda rows: True
    for handle in range(3):
        tokens = np.array([handle, 2, 3], np.int32)
        w.submit(EngineRequest(handle=handle, tokens=tokens, prompt_len=3, sampling=TokenSampling(max_tokens=20)))
    w.drain()  # compares every text with the oracle's
    assert guarded.failed == (fault in ("raises", "none", "fractions", "few"))
    assert max(int(b.query.max()) for b in w.batch_log) <= MOST + 1


def test_proposals_are_cut_to_the_count_and_the_vocabulary() -> None:
    w = World(make_config(vocab=VOCAB), drafts=MOST)
    drafter = Faulty(w, w.core.slots, MOST, 1.0)
    made = {"long": [[1, 1], [1, 1, 1]], "outside": [[1], [1]], "negative": [[], []]}
    for drafter.fault, kept in made.items():
        proposals = GuardedDrafter(drafter, "faulty", VOCAB).propose(np.array([1, 2]), np.array([2, 3]))
        assert proposals.split() == kept
