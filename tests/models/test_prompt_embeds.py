"""Prompts given as embeddings: the text that transformers makes of the same, however the prompt is cut, cached or preempted."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from zoo import CONFIGS as ZOO
from zoo import SMALL, load_reference, make_causal, make_tokenizer, spread

from thalweg import LLM, AsyncLLM, EngineArgs, SamplingParams
from thalweg.engine.client import embeds
from thalweg.errors import RequestError

NEW = 12
LENGTHS = (3, 40, 41, 17)
HOST = "thalweg.backends.torch_gpu.testing:HostGpuPlatform"
"""Steps padded to buckets, some of them captured."""
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    # Its embedding is scaled: vectors come as they are after that.
    "gemma3": lambda: transformers.Gemma3TextConfig(**{**SMALL, "head_dim": 16, "sliding_window": 16}),
}
GREEDY = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[torch.Tensor], list]:
    """A checkpoint, prompts of vectors that are no token's, and transformers' tokens for each."""
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[request.param](), dtype=torch.float32)
    spread(model, 7)
    path = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(path)
    make_tokenizer(path)
    torch.manual_seed(3)
    table = model.get_input_embeddings()
    prompts, said = [], []
    for n in LENGTHS:
        ids = torch.randint(3, SMALL["vocab_size"], (1, n))
        vectors = (table(ids) + 0.3 * table(torch.flip(ids, (1,)))).detach()
        prompts.append(vectors[0])
        with torch.no_grad():
            made = model.generate(
                inputs_embeds=vectors, attention_mask=torch.ones(1, n), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False
            )
        said.append(made[0].tolist())
    return path, prompts, said


def tokens(llm: LLM, prompts: list, params: SamplingParams = GREEDY) -> list[list[int]]:
    return [list(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False)]


@pytest.mark.parametrize("device", ["cpu", *(pytest.param(d, marks=pytest.mark.slow) for d in ("reference", HOST))])
@pytest.mark.slow
def test_text_is_that_of_transformers_in_chunks_from_the_cache_and_beside_others(device: str, case: tuple) -> None:
    path, vectors, want = case
    llm = LLM(
        str(path), device=device, dtype="float32", max_model_len=96, max_num_seqs=3, block_size=16, max_num_batched_tokens=24,
        num_gpu_blocks_override=12, use_tqdm_on_load=False,
    )  # fmt: skip
    plain = [{"prompt_token_ids": [5, 6, 7]}, {"prompt_token_ids": [0] * 40}]
    alone = tokens(llm, plain)
    given = [{"prompt_embeds": v} for v in vectors]
    got = tokens(llm, [given[0], plain[0], given[1], given[2], plain[1], given[3]])
    assert [got[0], got[2], got[3], got[5]] == want
    assert [got[1], got[4]] == alone
    before = llm.stats().prefix_hits
    assert tokens(llm, [{"prompt_embeds": vectors[1].numpy()}]) == [want[1]]
    assert llm.stats().prefix_hits == before + 32
    salted = {"prompt_embeds": vectors[1], "cache_salt": "another's"}
    assert tokens(llm, [salted]) == [want[1]]
    assert llm.stats().prefix_hits == before + 32


def test_other_vectors_of_the_same_length_find_nothing(case: tuple) -> None:
    path, vectors, want = case
    llm = LLM(str(path), device="cpu", dtype="float32", max_model_len=96, num_gpu_blocks_override=40, use_tqdm_on_load=False)
    other = vectors[1].clone()
    other[-1] += 0.5
    assert tokens(llm, [{"prompt_embeds": vectors[1]}, {"prompt_token_ids": [0] * 40}])[0] == want[1]
    before = llm.stats().prefix_hits
    tokens(llm, [{"prompt_embeds": other}])
    assert llm.stats().prefix_hits == before


def test_embeddings_of_tokens_are_those_tokens(case: tuple) -> None:
    path, _, _ = case
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    ids = [9, 200, 31, 4, 77]
    llm = LLM(str(path), device="cpu", dtype="float32", max_model_len=96, num_gpu_blocks_override=40, use_tqdm_on_load=False)
    drawn = SamplingParams(temperature=1, seed=5, max_tokens=NEW, ignore_eos=True, presence_penalty=0.5)
    vectors = model.get_input_embeddings()(torch.tensor(ids)).detach()
    (said,), (laid,) = tokens(llm, [{"prompt_token_ids": ids}], drawn), tokens(llm, [{"prompt_embeds": vectors}], drawn)
    assert said == laid
    mask = [True, False, False, True, False]
    vectors[torch.tensor(mask)] = 7.0  # not read
    mixed = {"prompt_embeds": vectors, "prompt_token_ids": ids, "prompt_is_token_ids": mask, "prompt": "as text"}
    assert tokens(llm, [mixed], drawn) == [said]
    out = llm.generate(mixed, SamplingParams(max_tokens=2), use_tqdm=False)[0]
    assert (out.prompt, out.prompt_token_ids) == ("as text", ids)
    out = llm.generate({"prompt_embeds": vectors}, SamplingParams(max_tokens=2, n=2, seed=1), use_tqdm=False)[0]
    assert (out.prompt, out.prompt_token_ids, len(out.outputs)) == (None, [0] * 5, 2)


@pytest.fixture(scope="module")
def nano() -> LLM:
    return LLM(device="cpu", num_gpu_blocks_override=64, use_tqdm_on_load=False)


@pytest.mark.parametrize(
    ("prompt", "params", "said"),
    [
        ({"prompt_embeds": [[1.0]]}, {}, "prompt_embeds must be an array or tensor of floats, not list"),
        ({"prompt_embeds": np.zeros((3, 7))}, {}, "the shape is 3 x 7, and must be tokens x"),
        ({"prompt_embeds": np.zeros(7)}, {}, "the shape is 7, and must be tokens x"),
        ({"prompt_embeds": np.zeros((2, 2), np.int32)}, {}, "of floats, not ndarray"),
        ({"prompt_embeds": "nan"}, {}, "has NaN or inf values"),
        ({"prompt_embeds": "none"}, {}, "is empty"),
        ({"prompt_embeds": "long"}, {}, "leave no room to answer"),
        ({"prompt_embeds": "ok", "prompt": 1}, {}, "prompt must be text"),
        ({"prompt_embeds": "ok", "prompt_token_ids": [1]}, {}, "one for each of the 4 vectors"),
        ({"prompt_embeds": "ok", "prompt_is_token_ids": [True] * 4}, {}, "send them too"),
        ({"prompt_embeds": "ok", "prompt_token_ids": [1] * 4, "prompt_is_token_ids": [1] * 4}, {}, "true and false"),
        ({"prompt_embeds": "ok", "images": 1}, {}, "images is not supported"),
        ({"prompt_embeds": "ok", "cache_salt": "\0a"}, {}, "must not begin with a NUL"),
        ({"prompt_embeds": "ok"}, {"prompt_logprobs": 1}, "prompt_logprobs: a prompt of embeddings has no tokens"),
        ({"prompt_embeds": "ok"}, {"repetition_penalty": 1.2}, "repetition_penalty: a prompt of embeddings has no tokens"),
    ],
)
@pytest.mark.sampled(3)
def test_what_cannot_be_laid_is_refused_by_name(nano: LLM, prompt: dict, params: dict, said: str) -> None:
    hidden = nano.config.model.hidden
    ready = {"ok": np.zeros((4, hidden)), "none": np.zeros((0, hidden)), "long": np.zeros((nano.config.model.max_len, hidden))}
    ready["nan"] = np.full((4, hidden), np.nan)
    if isinstance(prompt["prompt_embeds"], str):
        prompt = {**prompt, "prompt_embeds": ready[prompt["prompt_embeds"]]}
    with pytest.raises(RequestError, match=re.escape(said)):
        nano.generate(prompt, SamplingParams(max_tokens=1, **params), use_tqdm=False)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["gemma3", "llama"], indirect=True, scope="module")
async def test_they_cross_to_an_engine_process_and_too_many_are_refused_here(
    case: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, vectors, want = case
    engine = await AsyncLLM.start(
        EngineArgs(model=str(path), device="cpu", dtype="float32", max_model_len=96, num_gpu_blocks_override=40)
    )
    try:
        out = [o async for o in engine.generate({"prompt_embeds": vectors[1]}, GREEDY, "a")][-1]
        assert list(out.outputs[0].token_ids) == want[1]
        monkeypatch.setattr(embeds, "MOST_BYTES", 2 * vectors[1].numel() * 4)
        with pytest.raises(RequestError, match="prompt_embeds: 3 choices of a prompt of 7680 bytes"):
            async for _ in engine.generate({"prompt_embeds": vectors[1]}, SamplingParams(n=3, max_tokens=1), "b"):
                pass
    finally:
        await engine.shutdown()


@pytest.mark.slow
@torch.inference_mode()
def test_layers_that_have_inputs_of_their_own_get_those_of_the_padding_token(tmp_path: Path) -> None:
    path = make_causal("gemma4", tmp_path, **ZOO["gemma4"][1], pad_token_id=7)
    model = load_reference(path, torch.float32)
    table = model.get_input_embeddings()
    vectors = table(torch.arange(20, 41)[None]) + 0.3 * table(torch.arange(50, 71)[None])
    own = model.model.get_per_layer_inputs(torch.full((1, 21), 7))
    want = model(inputs_embeds=vectors, per_layer_inputs=own).logits[0, -1].log_softmax(-1)
    llm = LLM(str(path), device="cpu", dtype="float32", max_model_len=96, max_num_batched_tokens=16, use_tqdm_on_load=False)
    (out,) = llm.generate(
        [{"prompt_embeds": vectors[0]}], SamplingParams(temperature=0, max_tokens=1, logprobs=0), use_tqdm=False
    )
    ((token, told),) = out.outputs[0].logprobs[0].items()
    assert token == int(want.argmax())
    assert told.logprob == pytest.approx(float(want.max()), abs=1e-4)
