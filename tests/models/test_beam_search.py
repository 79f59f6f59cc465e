"""`LLM.beam_search`: the beams that transformers' generate(num_beams) finds, and their scores."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from zoo import SMALL, make_tokenizer, spread

from thalweg import LLM, BeamSearchParams
from thalweg.errors import RequestError

pytestmark = pytest.mark.slow
WIDTH, NEW = 4, 6
PROMPTS = [[5, 9, 200, 31], [77] * 9, [3, 250, 17, 18, 19, 20]]
END = SMALL["eos_token_id"]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> tuple[LLM, transformers.PreTrainedModel]:
    """A model that ends its texts often, here and in transformers."""
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SMALL), dtype=torch.float32).eval()
    spread(model, 11)
    with torch.no_grad():
        hidden = model.model.norm.weight.numel()
        model.lm_head.weight[END] = model.lm_head.weight[:200].max(0).values * (6 / hidden**0.5)
    path: Path = tmp_path_factory.mktemp("beams")
    model.save_pretrained(path)
    make_tokenizer(path)
    llm = LLM(path, device="cpu", dtype="float32", max_num_seqs=32, kv_cache_memory_bytes=1 << 24, use_tqdm_on_load=False)
    yield llm, model
    llm.shutdown()


def theirs(
    model: transformers.PreTrainedModel, prompt: list[int], end: int | None, power: float
) -> list[tuple[list[int], float]]:
    """(tokens without the end, score), best first."""
    with torch.no_grad():
        made = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), num_beams=WIDTH, num_return_sequences=WIDTH,
            max_new_tokens=NEW, do_sample=False, eos_token_id=end, pad_token_id=0, length_penalty=power,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
    out = []
    for row, score in zip(made.sequences.tolist(), made.sequences_scores.tolist(), strict=True):
        new = row[len(prompt) :]
        out.append((row[: len(prompt)] + (new[: new.index(end)] if end in new else new), score))
    return out


def test_beams_and_scores_are_those_of_transformers(case) -> None:
    llm, model = case
    params = BeamSearchParams(beam_width=WIDTH, max_tokens=NEW, ignore_eos=True, length_penalty=0.0)
    for prompt, found in zip(PROMPTS, llm.beam_search([{"prompt_token_ids": p} for p in PROMPTS], params), strict=True):
        want = theirs(model, prompt, None, 0.0)
        assert [s.tokens for s in found.sequences] == [tokens for tokens, _ in want]
        for mine, (_, score) in zip(found.sequences, want, strict=True):
            assert mine.cum_logprob == pytest.approx(score, abs=1e-3)
            assert mine.finish_reason == "length"
            assert len(mine.logprobs) == NEW


def test_a_beam_ends_at_the_end_token_and_the_best_is_that_of_transformers(case) -> None:
    llm, model = case
    params = BeamSearchParams(beam_width=WIDTH, max_tokens=NEW, length_penalty=0.0)
    ended = 0
    for prompt, found in zip(PROMPTS, llm.beam_search(PROMPTS, params, concurrency_limit=2), strict=True):
        tokens, score = theirs(model, prompt, END, 0.0)[0]
        best = found.sequences[0]
        assert best.tokens == tokens
        assert best.cum_logprob == pytest.approx(score, abs=1e-3)
        ended += sum(s.finish_reason == "stop" and s.stop_reason == END for s in found.sequences)
        kept = BeamSearchParams(beam_width=1, max_tokens=NEW, include_stop_str_in_output=True)
        (only,) = llm.beam_search(prompt, kept)[0].sequences
        assert (only.tokens[-1] == END) is (only.finish_reason == "stop")
    assert ended, "no text ended, so nothing was shown"


def test_what_a_search_cannot_have_is_refused_before_it_starts(case) -> None:
    llm, _ = case
    for ask, said in (
        (lambda: BeamSearchParams(beam_width=0, max_tokens=1), "beam_width"),
        (lambda: llm.beam_search("a", BeamSearchParams(beam_width=11, max_tokens=1)), "logprobs"),
        (lambda: llm.beam_search("a", BeamSearchParams(beam_width=2, max_tokens=10_000)), "max_tokens"),
        (lambda: llm.beam_search("a", BeamSearchParams(beam_width=2, max_tokens=2), concurrency_limit=0), "concurrency_limit"),
    ):
        with pytest.raises(RequestError, match=said):
            ask()
    with pytest.raises(RequestError, match="must be a LoRARequest"):
        llm.beam_search("a", BeamSearchParams(beam_width=2, max_tokens=2), lora_request=object())
    assert not llm.llm_engine.has_unfinished_requests()
