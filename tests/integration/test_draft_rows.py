"""Requests whose logits change with every token have drafts, and the same text, whether drafts are right or wrong."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import pytest
from amounts import some

from thalweg import LLM, SamplingParams, drafters
from thalweg.engine.control.speculation.drafter import Drafter, Proposals
from thalweg.engine.control.speculation.gain import Gain

PROMPTS = ["one two three one two three one two", "12 + 30 =", "Reverse the word: lantern\nReverse the"]
KINDS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2},
    {"temperature": 0.9, "seed": 4, "frequency_penalty": 1.5, "top_p": 0.9},
    {"logit_bias": {5: 3.0, 40: -2.0}, "temperature": 0.7, "seed": 8},
    {"bad_words": [" two", "three", "the word"]},
    {"min_tokens": 9, "ignore_eos": False, "stop_token_ids": list(range(10, 400, 3))},
    {"logprobs": 2, "temperature": 0.8, "seed": 2},
    {"logprobs": 0, "repetition_penalty": 1.2},
    {"allowed_token_ids": list(range(20, 800)), "presence_penalty": 0.5},
    {"structured_outputs": {"regex": "[a-z ]{30,60}"}, "logprobs": 1, "frequency_penalty": 0.3, "logit_bias": {90: 1.0}},
]
HOST = "thalweg.backends.torch_gpu.testing:HostGpuPlatform"
"""Steps run late and two at a time, by graphs of padded sizes."""


class Scripted(Drafter):
    """Knows every text. Proposes what follows, or a token that does not."""

    texts: ClassVar[list[list[int]]] = []
    luck: ClassVar[float] = 1.0

    def propose(self, slots: Any, most: Any) -> Proposals:
        return Proposals.of([self._drafts(slot, n) for slot, n in zip(slots.tolist(), most.tolist(), strict=True)])

    def _drafts(self, slot: int, most: int) -> list[int]:
        known = self._slots.tokens[slot, : self._slots.known[slot]].tolist()
        rest = next((t[len(known) :] for t in self.texts if t[: len(known)] == known), [])[:most]
        rng = random.Random(len(known))
        return [t if rng.random() < self.luck else (t + rng.randrange(1, 100)) % 1000 for t in rest]


def texts(device: str, drafts: bool) -> tuple[list[Any], Any]:
    llm = LLM(
        device=device, dtype="float32", max_model_len=96, max_num_seqs=8, seed=0, use_tqdm_on_load=False,
        speculative_config={"method": "scripted", "num_speculative_tokens": 3} if drafts else None,
    )  # fmt: skip
    try:
        work = [
            (p, {"max_tokens": 20, "temperature": 0, "ignore_eos": True} | kind)
            for kind in KINDS
            for p in PROMPTS[: some(1, 3)]
        ]
        outs = llm.generate([p for p, _ in work], [SamplingParams(**kind) for _, kind in work], use_tqdm=False)
        Scripted.texts = [[*o.prompt_token_ids, *o.outputs[0].token_ids] for o in outs]
        seen = [(c.text, tuple(c.token_ids), c.finish_reason, c.stop_reason, c.logprobs) for o in outs for c in o.outputs]
        return seen, llm.stats()
    finally:
        llm.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", HOST])
def test_text_and_logprobs_do_not_depend_on_drafts(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(drafters._LIST._local, "scripted", f"{__name__}:Scripted")
    monkeypatch.setattr(Gain, "allows", lambda self, streams: True)  # whatever this machine's clock says
    without, plain = texts(device, False)
    for luck, least, most in ((1.0, 0.9, 1.0), (0.0, 0.0, 0.1)):
        monkeypatch.setattr(Scripted, "luck", luck)
        with_drafts, stats = texts(device, True)
        assert with_drafts == without, luck
        assert least <= stats.accepted_tokens / stats.draft_tokens <= most
        if luck:
            assert stats.steps < 0.6 * plain.steps  # so nearly every row had drafts
