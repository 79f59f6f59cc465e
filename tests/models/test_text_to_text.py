"""Models with a text encoder against transformers: greedy tokens, mixed lengths, preemption, and prompts that are refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from zoo import _copied, edit_config, make_tokenizer, spread

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.safetensors import open_checkpoint
from thalweg.errors import RequestError, UnsupportedModelError
from thalweg.hal.comm import Mesh
from thalweg.hal.discovery import load as load_platform
from thalweg.hal.op import Binder
from thalweg.hal.platform import Place
from thalweg.models import registry, sizes
from thalweg.models.build import build
from thalweg.models.load import load_params
from thalweg.models.spec import ModelSpec
from thalweg.models.weights import walk
from thalweg.params import BeamSearchParams

VOCAB, NEW = 288, 12
BART: dict[str, Any] = {
    "vocab_size": VOCAB, "d_model": 48, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 3,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 80, "decoder_ffn_dim": 96, "max_position_embeddings": 64,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
T5: dict[str, Any] = {
    "vocab_size": VOCAB, "d_model": 48, "d_kv": 16, "d_ff": 80, "num_layers": 2, "num_heads": 4, "n_positions": 64,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "pad_token_id": 0, "eos_token_id": 1,
    "decoder_start_token_id": 0,
}  # fmt: skip
LONGT5: dict[str, Any] = {**T5, "local_radius": 5, "global_block_size": 4}
GEMMA: dict[str, Any] = {
    "vocab_size": VOCAB, "num_key_value_heads": 2, "sliding_window": 9, "max_position_embeddings": 64, "pad_token_id": 0,
    "eos_token_id": 1, "bos_token_id": 2, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 9.0,
}  # fmt: skip
T5GEMMA: dict[str, Any] = {
    "encoder": {
        **GEMMA, "hidden_size": 40, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 16,
    },
    "decoder": {
        **GEMMA, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "head_dim": 16,
        "query_pre_attn_scalar": 24,
    },
    "decoder_start_token_id": 2, "pad_token_id": 0, "eos_token_id": 1, "vocab_size": VOCAB,
}  # fmt: skip
BERT: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 80,
    "max_position_embeddings": 64, "pad_token_id": 0, "type_vocab_size": 2,
}  # fmt: skip
ROBERTA: dict[str, Any] = {**BERT, "model_type": "roberta", "pad_token_id": 1, "max_position_embeddings": 66}
PAIR: dict[str, Any] = {"decoder_start_token_id": 2, "pad_token_id": 0, "eos_token_id": 1}
READS: dict[str, Any] = {"is_decoder": True, "add_cross_attention": True}
CONFIGS: dict[str, tuple[type, dict[str, Any]]] = {
    "bart": (transformers.BartConfig, BART),
    "bart-scaled": (transformers.BartConfig, BART | {"scale_embedding": True, "activation_function": "relu"}),
    "plbart": (transformers.PLBartConfig, BART),
    "mvp": (transformers.MvpConfig, BART),
    "blenderbot": (transformers.BlenderbotConfig, BART),
    "blenderbot-small": (transformers.BlenderbotSmallConfig, BART),
    "mbart": (transformers.MBartConfig, BART | {"scale_embedding": True}),
    "marian": (
        transformers.MarianConfig,
        BART | {"activation_function": "swish", "decoder_start_token_id": 1, "scale_embedding": True},
    ),
    "pegasus": (transformers.PegasusConfig, BART | {"activation_function": "relu", "decoder_start_token_id": 1}),
    "pegasus-x": (
        transformers.PegasusXConfig, BART | {"decoder_start_token_id": 1, "num_global_tokens": 3, "block_size": 8},
    ),
    "led": (
        transformers.LEDConfig,
        {
            **{k: v for k, v in BART.items() if k != "max_position_embeddings"}, "max_encoder_position_embeddings": 64,
            "max_decoder_position_embeddings": 48, "attention_window": [8, 16],
        },
    ),
    "m2m-100": (transformers.M2M100Config, BART),
    **{
        name: (
            kind,
            {**{k: v for k, v in BART.items() if k != "d_model"}, "hidden_size": 48, "pad_token_id": 1, "t2u_encoder_layers": 1,
             "t2u_decoder_layers": 1, "speech_encoder_layers": 1},
        )
        for name, kind in (("seamless", transformers.SeamlessM4TConfig), ("seamless-v2", transformers.SeamlessM4Tv2Config))
    },
    "t5": (transformers.T5Config, T5),
    "flan-t5": (transformers.T5Config, T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "longt5-local": (
        transformers.LongT5Config, LONGT5 | {"encoder_attention_type": "local", "feed_forward_proj": "gated-gelu"},
    ),
    "longt5": (transformers.LongT5Config, LONGT5 | {"encoder_attention_type": "transient-global"}),
    "switch": (
        transformers.SwitchTransformersConfig,
        {
            **{k: v for k, v in T5.items() if k != "n_positions"}, "num_layers": 4, "num_decoder_layers": 3, "num_experts": 5,
            "num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 1, "expert_capacity": 16, "router_bias": True,
        },
    ),
    "t5gemma": (transformers.T5GemmaConfig, T5GEMMA),
    "bert-to-bert": (
        transformers.EncoderDecoderConfig,
        {**PAIR, "encoder": {**BERT, "model_type": "bert"}, "decoder": {**BERT, **READS, "model_type": "bert",
                                                                        "num_hidden_layers": 3, "num_attention_heads": 3}},
    ),
    "roberta-to-roberta": (
        transformers.EncoderDecoderConfig,
        {**PAIR, "pad_token_id": 1, "eos_token_id": 3, "encoder": ROBERTA, "decoder": {**ROBERTA, **READS}},
    ),
    "bert-generation-pair": (
        transformers.EncoderDecoderConfig,
        {**PAIR, "encoder": {**BERT, "model_type": "bert-generation"}, "decoder": {
            **BERT, **READS, "model_type": "bert-generation", "tie_word_embeddings": False}},
    ),
    "umt5": (transformers.UMT5Config, T5 | {"feed_forward_proj": "gated-gelu"}),
}  # fmt: skip


def make_model(name: str, directory: Path, **generation: Any) -> Path:
    """generation: of generation_config.json."""
    kind, sizes = CONFIGS[name]

    def make(path: Path) -> None:
        model = transformers.AutoModelForSeq2SeqLM.from_config(kind(**sizes), dtype=torch.float32).eval()
        positions = {n: p.clone() for n, p in model.named_parameters() if "embed_positions" in n and not p.requires_grad}
        spread(model, sum(map(ord, name)))
        with torch.no_grad():
            for n, p in model.named_parameters():
                if n in positions:
                    p.copy_(positions[n])
                elif "relative_attention_bias" in n:
                    p.normal_(0, 2)
                elif (
                    "encoder_attn.out_proj.weight" in n
                    or "EncDecAttention.o.weight" in n
                    or "post_cross_attn" in n
                    or "cross_attention.out" in n
                    or "crossattention.output.dense.weight" in n
                ):
                    p.mul_(3)  # sources must matter
            if hasattr(model, "final_logits_bias"):
                model.final_logits_bias.normal_(0, 0.3)
        model.save_pretrained(path)
        make_tokenizer(path)
        said = {"decoder_start_token_id": sizes["decoder_start_token_id"], "eos_token_id": [sizes["eos_token_id"], 256]}
        (path / "generation_config.json").write_text(json.dumps({**said, "pad_token_id": sizes["pad_token_id"], **generation}))

    return _copied((name, json.dumps(generation)), make, directory / name)


def sources(lengths: tuple[int, ...] = (1, 7, 23, 40, 64, 12)) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(3, 256, n).tolist() for n in lengths]


def load(path: Path) -> Any:
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(path, dtype=torch.float32).eval()


@torch.inference_mode()
def greedy(model: Any, ids: list[int], **more: Any) -> tuple[list[int], list[float]]:
    """(tokens of transformers' `generate`, log-probabilities of those behind the first)."""
    made = model.generate(
        torch.tensor([ids]), do_sample=False, num_beams=1, max_new_tokens=NEW, output_logits=True, return_dict_in_generate=True,
        **more,
    )  # fmt: skip
    tokens = made.sequences[0].tolist()
    rows = torch.cat(made.logits).log_softmax(-1)
    return tokens, [float(row[t]) for row, t in zip(rows, tokens[-len(rows) :], strict=True)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_tokens_are_those_of_transformers(name, tmp_path):
    """Sources of mixed lengths, more than there are slots, and again with known ones."""
    path = make_model(name, tmp_path)
    llm = LLM(str(path), device="cpu", dtype="float32", max_num_seqs=4, block_size=4, use_tqdm_on_load=False)
    params, asked, model = SamplingParams(temperature=0, max_tokens=NEW, logprobs=0), sources(), load(path)
    begins = [[CONFIGS[name][1]["decoder_start_token_id"], *s[: 3 * i]] for i, s in enumerate(sources((1, 4, 7, 10, 13, 16)))]
    wanted = [greedy(model, ids, decoder_input_ids=torch.tensor([b])) for ids, b in zip(asked, begins, strict=True)]
    prompts = [{"prompt_token_ids": s, "decoder_prompt": b[1:]} for s, b in zip(asked, begins, strict=True)]
    for _ in range(2):
        outputs = llm.generate([{"prompt_token_ids": asked[0]}, *prompts[1:]], params, use_tqdm=False)
        for ids, begin, out, (tokens, logprobs) in zip(asked, begins, outputs, wanted, strict=True):
            got = out.outputs[0]
            assert [*begin, *got.token_ids] == tokens
            assert out.prompt_token_ids == ids
            mine = [step[t].logprob for step, t in zip(got.logprobs, got.token_ids, strict=True)]
            np.testing.assert_allclose(mine, logprobs, atol=1e-4)
    others = [greedy(model, ids)[1][0] for ids in asked]
    assert max(others) - min(others) > 0.1, "sources change nothing"
    llm.shutdown()


@pytest.mark.parametrize("name", ["bert-to-bert", "marian", "m2m-100", "umt5", "t5gemma", "pegasus-x", "led", "longt5"])
def test_values_are_counted_as_the_file_has_them(name, tmp_path):
    """Computed positions are in no file: a server compares the counts before it starts."""
    path = make_model(name, tmp_path)
    config = read_config(path)
    spec = registry.family(config)(config)
    assert sizes.stored_values(spec) == count_values(path, spec)


def count_values(path: Path, spec: ModelSpec) -> int:
    """Of the tensors that the model reads."""
    stored = open_checkpoint(path)
    return sum(math.prod(stored.entry(name)[1]) for name in stored.names if spec.rename(name) is not None)


@pytest.mark.slow
def test_preempted_answers_read_their_source_again(tmp_path):
    path, asked = make_model("mbart", tmp_path), [{"prompt_token_ids": s} for s in sources()[:4]]
    params, texts = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True), []
    for blocks in (64, 14):
        llm = LLM(
            str(path), device="cpu", dtype="float32", max_num_seqs=4, block_size=4, num_gpu_blocks_override=blocks,
            enable_prefix_caching=False, max_model_len=48, use_tqdm_on_load=False,
        )  # fmt: skip
        texts.append([list(o.outputs[0].token_ids) for o in llm.generate(asked, params, use_tqdm=False)])
        preempted = llm.stats().preemptions
        llm.shutdown()
    assert preempted
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_sources_and_beginnings(tmp_path):
    """The forced token, banned tokens, texts, and prompts that are refused."""
    path = make_model("m2m-100", tmp_path, forced_bos_token_id=77, bad_words_ids=[[1], [5, 6]])
    llm = LLM(str(path), device="reference", dtype="float32", max_num_seqs=2, use_tqdm_on_load=False)
    params, ids = SamplingParams(temperature=0, max_tokens=NEW), sources()[2]
    assert llm.llm_engine.config.model.source.suppress == (1,)
    generate = lambda prompt: llm.generate([prompt], params, use_tqdm=False)[0]  # noqa: E731
    (letter,) = llm.get_tokenizer().encode("b")
    want, other = (greedy(load(path), ids, forced_bos_token_id=n)[0] for n in (77, letter))
    assert [2, 77, *generate(ids).outputs[0].token_ids] == [*want, *generate(ids).outputs[0].token_ids[NEW - 1 :]]
    for beginning in ("b", [letter], [2, letter], {"prompt": "b"}):
        tokens = generate({"encoder_prompt": {"prompt_token_ids": ids}, "decoder_prompt": beginning}).outputs[0].token_ids
        assert [2, letter, *tokens[: NEW - 1]] == other
    said = generate("Hello there")
    assert said.prompt == "Hello there"
    assert list(said.prompt_token_ids) == llm.get_tokenizer().encode("Hello there")
    wrong = {
        "65 tokens, and": list(range(3, 68)),
        "decoder_prompt: token id 999": {"prompt": "a", "decoder_prompt": [999]},
        "must be text or token ids": {"prompt": "a", "decoder_prompt": 3},
        "64 tokens leave no room": {"prompt": "a", "decoder_prompt": [9] * 63},
    }
    for words, prompt in wrong.items():
        with pytest.raises(RequestError, match=words):
            generate(prompt)
    with pytest.raises(RequestError, match="prompt_logprobs: the prompt is read by this model's encoder"):
        llm.generate(["a"], SamplingParams(prompt_logprobs=1), use_tqdm=False)
    with pytest.raises(RequestError, match="beam search"):
        llm.beam_search([{"prompt": "a"}], BeamSearchParams(beam_width=2, max_tokens=2))


def test_a_separate_output_matrix(tmp_path):
    """T5 1.1 and FLAN-T5 as published: `tie_word_embeddings` is false, and logits are not scaled."""
    path = make_model("flan-t5", tmp_path)
    tensors = load_file(path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["shared.weight"].flip(0).contiguous()
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    edit_config(path, tie_word_embeddings=False, scale_decoder_outputs=None)
    model, ids = load(path), sources()[2]
    model.lm_head.weight = torch.nn.Parameter(tensors["lm_head.weight"])
    model.config.scale_decoder_outputs = False
    tokens, logprobs = greedy(model, ids)
    llm = LLM(str(path), device="reference", dtype="float32", max_num_seqs=1, use_tqdm_on_load=False)
    (out,) = llm.generate([ids], SamplingParams(temperature=0, max_tokens=NEW, logprobs=0), use_tqdm=False)
    got = out.outputs[0]
    assert [0, *got.token_ids] == tokens
    mine = [step[t].logprob for step, t in zip(got.logprobs, got.token_ids, strict=True)]
    np.testing.assert_allclose(mine, logprobs, atol=1e-4)


def test_embeddings_of_an_encoder(tmp_path):
    kind, sizes = CONFIGS["umt5"]
    model = transformers.UMT5EncoderModel(kind(**sizes)).eval()
    spread(model, 9)
    model.save_pretrained(tmp_path)
    make_tokenizer(tmp_path)
    llm = LLM(str(tmp_path), device="cpu", dtype="float32", max_num_seqs=4, use_tqdm_on_load=False)
    for ids, out in zip(sources(), llm.embed([{"prompt_token_ids": s} for s in sources()], use_tqdm=False), strict=True):
        with torch.inference_mode():
            want = torch.nn.functional.normalize(model(torch.tensor([ids])).last_hidden_state[0].mean(0), dim=0)
        np.testing.assert_allclose(out.outputs.embedding, want.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tie_encoder_decoder": True}, "without its own weights"),
        ({"decoder": {**BERT, "model_type": "gpt2"}}, "'bert' and 'gpt2' are not supported"),
        ({"encoder": {**BERT, "model_type": "bert", "hidden_size": 24}}, "different sizes"),
    ],
)
def test_other_pairs_are_refused(changes, words, tmp_path):
    path = make_model("bert-to-bert", tmp_path)
    edit_config(path, **changes)
    with pytest.raises(UnsupportedModelError, match=words):
        registry.family(read_config(path))(read_config(path))


def test_prompts_of_mvp_are_refused(tmp_path):
    path = make_model("mvp", tmp_path)
    edit_config(path, use_prompt=True)
    with pytest.raises(UnsupportedModelError, match="use_prompt"):
        registry.family(read_config(path))(read_config(path))


@pytest.mark.parametrize("name", ["led", "pegasus-x", "longt5", "t5gemma"])
def test_the_longest_source_is_a_setting(name, tmp_path):
    """It changes no tensor of the file."""
    path = make_model(name, tmp_path)
    config = read_config(path)
    spec = registry.family(config)({**config, "max_source_positions": 24})
    assert spec.text.sources == 24
    assert {mixer.sources for _, mixer in spec.mixers if hasattr(mixer, "sources")} == {24}
    assert sizes.stored_values(spec) == count_values(path, spec)


@pytest.mark.parametrize("name", ["bert-to-bert", "t5gemma", "longt5", "pegasus-x", "led", "switch"])
@pytest.mark.sampled(2)
def test_the_bytes_counted_are_the_bytes_held(name, tmp_path):
    """With the tables and the vectors of the encoder."""
    config, device = read_config(make_model(name, tmp_path)), load_platform("reference").open(Place())
    built = build(
        config, binder=Binder(()), attention=device.attention, mesh=Mesh(), dtype="bfloat16", max_len=24, block_tokens=4
    )
    params = load_params(built, Path("nowhere"), device, load_format="dummy", progress=False)
    held = {t.data_ptr(): t.nbytes for _, t in walk(params) if isinstance(t, torch.Tensor)}
    assert sizes.weight_bytes(registry.family(config)(config), "bfloat16", 24) == sum(held.values())
