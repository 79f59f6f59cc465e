"""A seed means the same text: alone, among strangers, with the prefix cached, after a preemption, resubmitted."""

from __future__ import annotations

import numpy as np
import pytest
from zoo import make_checkpoint

from thalweg import LLM, SamplingParams

PROMPT = np.random.default_rng(1).integers(3, 90, 21).tolist()


def params(seed: int, **more) -> SamplingParams:
    fields = {"temperature": 1.2, "top_p": 0.95, "top_k": 40, "max_tokens": 14, "ignore_eos": True, "detokenize": False, **more}
    return SamplingParams(seed=seed, **fields)


def strangers(n: int, vocab: int) -> list[dict]:
    rng = np.random.default_rng(2)
    return [{"prompt_token_ids": rng.integers(3, vocab, int(rng.integers(1, 30))).tolist()} for _ in range(n)]


@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        ("cpu", "bfloat16"),
        *(
            pytest.param(*c, marks=pytest.mark.slow)
            for c in (("cpu", "float32"), ("reference", "float32"), ("reference", "bfloat16"))
        ),
    ],
)
@pytest.mark.slow
def test_a_seed_gives_the_same_tokens_in_every_company(device, dtype, tmp_path):
    path = make_checkpoint("qwen3", tmp_path)

    def engine(**more):
        settings = {"block_size": 4, "max_model_len": 64, "max_num_seqs": 33, "max_num_batched_tokens": 256, **more}
        return LLM(str(path), device=device, dtype=dtype, skip_tokenizer_init=True, use_tqdm_on_load=False, **settings)

    mine = {"prompt_token_ids": PROMPT}
    llm = engine()
    alone = llm.generate(mine, params(7), use_tqdm=False)[0].outputs[0].token_ids
    assert alone != llm.generate(mine, params(8), use_tqdm=False)[0].outputs[0].token_ids, "the seed does something"

    hit = llm.generate(mine, params(7), use_tqdm=False)[0]
    assert hit.num_cached_tokens > 0
    assert hit.outputs[0].token_ids == alone

    others = strangers(32, llm.config.model.vocab)
    assert llm.reset_prefix_cache()
    crowd = llm.generate(
        [*others[:16], mine, *others[16:]],
        [params(i) for i in range(16)] + [params(7)] + [params(i) for i in range(16)],
        use_tqdm=False,
    )
    assert crowd[16].outputs[0].token_ids == alone
    assert crowd[16].num_cached_tokens == 0
    llm.shutdown()

    tight = engine(max_num_seqs=8, max_num_batched_tokens=16, num_gpu_blocks_override=22)
    # Started last, so the first to be preempted.
    squeezed = tight.generate([*others[:12], mine], [params(i) for i in range(12)] + [params(7)], use_tqdm=False)
    assert tight.stats().preemptions > 0
    assert squeezed[-1].outputs[0].token_ids == alone
    # What a client does after a crash: prompt and emitted tokens go in together, the rest comes out.
    tight.shutdown()


def test_each_of_n_choices_draws_its_own_and_repeats(tmp_path):
    path = make_checkpoint("llama", tmp_path)
    llm = LLM(str(path), device="cpu", dtype="float32", skip_tokenizer_init=True, max_model_len=64, use_tqdm_on_load=False)
    first, again = (
        [tuple(c.token_ids) for c in llm.generate({"prompt_token_ids": PROMPT}, params(3, n=4), use_tqdm=False)[0].outputs]
        for _ in range(2)
    )
    assert first == again
    assert len(set(first)) == 4
    llm.shutdown()
