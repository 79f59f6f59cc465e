"""InstructBLIP through the whole engine, against transformers: the Q-Former reads the prompt with a second tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

import seeing
from seeing_queries import BLIP
from test_images import SIZES, asks, engine, picture, seen
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from zoo import spread

from thalweg import SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, RequestError
from thalweg.media.processors import processor
from thalweg.models import registry

TOKEN, NEW, VECTORS, LONGEST = "<image>", 10, 5, 24
SHARED = {"vocab_size": 288, "pad_token_id": 0, "eos_token_id": 1}
TEXTS: dict[str, dict[str, Any]] = {
    "llama": {
        **SHARED, "model_type": "llama", "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 2,
        "num_attention_heads": 3, "num_key_value_heads": 3, "max_position_embeddings": 256,
    },
    "t5": {
        **SHARED, "model_type": "t5", "d_model": 48, "d_kv": 16, "d_ff": 72, "num_layers": 2, "num_heads": 3,
        "num_decoder_layers": 2, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "decoder_start_token_id": 0,
    },
}  # fmt: skip
QFORMER = {
    "hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 40, "encoder_hidden_size": 32,
    "vocab_size": 40, "max_position_embeddings": LONGEST,
}  # fmt: skip
SIZES_OF_T5 = {"d_model": 2048, "d_ff": 5120, "num_layers": 24, "num_heads": 32}
BEGIN = "<|im_end|>"
"""First token of texts of the decoder, as its tokenizer names it."""
TEMPLATE = {
    kind: "{% for p in messages[0].content %}{% if p.type == 'image' %}<image>" + begin + "{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}" for kind, begin in (("llama", BEGIN), ("t5", ""))
}  # fmt: skip
PROMPTS = ("what is this", "Where is it?", "what  is\nthat")


def write_qformer_tokenizer(path: Path) -> Tokenizer:
    """Of lower-case characters, with the special tokens of BERT."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz?"]
    tok = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer(lowercase=True)
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split("", "isolated")])
    tok.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    path.mkdir()
    tok.save(str(path / "tokenizer.json"))
    return tok


def make(path: Path, kind: str) -> Any:
    config = transformers.InstructBlipConfig(
        text_config=TEXTS[kind], vision_config=BLIP, qformer_config=QFORMER, num_query_tokens=VECTORS,
        image_token_index=seeing.IDS[TOKEN],
    )  # fmt: skip
    model = transformers.InstructBlipForConditionalGeneration._from_config(config, attn_implementation="eager").float().eval()
    spread(model, 4)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "EncDecAttention.o.weight" in name:
                p.mul_(3)  # sources must matter
    model.save_pretrained(path)
    reader().save_pretrained(path)
    seeing.write_tokenizer(path, TOKEN)
    said = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps({**said, "bos_token": {"content": BEGIN}}))
    (path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [1], "pad_token_id": 0} | ({"decoder_start_token_id": 0} if kind == "t5" else {}))
    )
    write_qformer_tokenizer(path / "qformer_tokenizer")
    return model


def reader() -> Any:
    return transformers.BlipImageProcessorPil(size={"height": 28, "width": 28})


def greedy(model: Any, path: Path, ids: list[int], text: str, image: Any) -> tuple[list[int], np.ndarray]:
    """(tokens, their log-probabilities) of a prompt, as `InstructBlipProcessor` encodes it for the Q-Former."""
    words = Tokenizer.from_file(str(path / "qformer_tokenizer" / "tokenizer.json")).encode(text).ids
    model.language_model.generation_config.eos_token_id = None
    out = model.generate(
        pixel_values=reader()(images=[image], return_tensors="pt")["pixel_values"], input_ids=torch.tensor([ids]),
        qformer_input_ids=torch.tensor([words]), do_sample=False, max_new_tokens=NEW, output_logits=True,
        return_dict_in_generate=True,
    )  # fmt: skip
    made = out.sequences[0].tolist()[-NEW:]
    return made, torch.cat(out.logits).log_softmax(-1).gather(1, torch.tensor(made)[:, None])[:, 0].numpy()


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(TEXTS))
def test_answers_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    """Several prompts about one image, and one prompt about several, in a batch, and again from caches."""
    model = make(tmp_path, kind)
    images = [picture(*size, seed) for seed, size in enumerate(SIZES)]
    pairs = [*((text, images[0]) for text in PROMPTS), *((PROMPTS[0], image) for image in images[1:])]
    llm = engine(tmp_path, max_model_len=64, block_size=4)
    try:
        params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, logprobs=0)
        for _ in range(2):
            outs = llm.generate([{"prompt": t, "multi_modal_data": {"image": i}} for t, i in pairs], params, use_tqdm=False)
            for (text, image), out in zip(pairs, outs, strict=True):
                ids = list(out.prompt_token_ids)
                assert ids[:VECTORS] == [seeing.IDS[TOKEN]] * VECTORS
                assert (ids[VECTORS] == seeing.IDS[BEGIN]) == (kind == "llama")
                tokens, scores = greedy(model, tmp_path, ids, text, image)
                assert list(out.outputs[0].token_ids) == tokens
                mine = [each[t].logprob for each, t in zip(out.outputs[0].logprobs, tokens, strict=True)]
                np.testing.assert_allclose(mine, scores, atol=1e-4)
        assert len({tuple(out.outputs[0].token_ids) for out in outs}) > 1
        chat = llm.chat(asks(images[0], PROMPTS[0]), params, use_tqdm=False, chat_template=TEMPLATE[kind])[0]
        assert chat.prompt_token_ids == outs[0].prompt_token_ids
        assert chat.outputs[0].token_ids == outs[0].outputs[0].token_ids
        with pytest.raises(RequestError, match="prompt: it has 32 tokens of the Q-Former, which reads at most 24"):
            llm.generate({"prompt": "a" * 30, "multi_modal_data": {"image": images[0]}}, params, use_tqdm=False)
        with pytest.raises(RequestError, match="2 images; this model reads one in a prompt"):
            llm.generate({"prompt": "<image><image>", "multi_modal_data": {"image": images[:2]}}, params, use_tqdm=False)
    finally:
        llm.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(TEXTS))
def test_the_text_part_alone_reads_no_image(kind: str, tmp_path: Path) -> None:
    model = make(tmp_path, kind)
    llm = engine(tmp_path, max_model_len=64, block_size=4, language_model_only=True)
    try:
        out = llm.generate("hello", SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True), use_tqdm=False)[0]
        inner, ids = model.language_model, list(out.prompt_token_ids)
        assert (
            list(out.outputs[0].token_ids)
            == seeing.generate_scored(inner, NEW, 1 if kind == "t5" else len(ids), inputs=torch.tensor([ids]))[0]
        )
    finally:
        llm.shutdown()


def test_a_prompt_begins_with_the_image_and_the_first_token(tmp_path: Path) -> None:
    make(tmp_path, "llama")
    ours: Any = processor(read_config(tmp_path), tmp_path)
    image = picture(40, 30, 0)
    views, size = seen(image, ours)
    assert ours.complete("what <image>is this") == f"<image>{BEGIN}what is this"
    data = ours.add_text(tuple(views), f"{BEGIN}Is it?")
    np.testing.assert_array_equal(data[-1], [2, 12, 22, 12, 23, 30, 3])
    made = ours.preprocess(data, size)
    np.testing.assert_array_equal(made.words, data[-1])
    want = reader()(images=[image], return_tensors="np")["pixel_values"][0]
    np.testing.assert_allclose(made.value[1], want[:, :7, :7].reshape(-1), atol=2e-6)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    make(tmp_path, "llama")
    (tmp_path / "qformer_tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"qformer_tokenizer: has no tokenizer\.json: download"):
        processor(read_config(tmp_path), tmp_path)


@pytest.mark.parametrize("kind", list(TEXTS))
def test_absent_keys_have_the_defaults_of_transformers(kind: str, tmp_path: Path) -> None:
    """Published files of T5 name the sizes that are not those of its smallest model."""
    text = {"model_type": kind, **(SIZES_OF_T5 if kind == "t5" else {})}
    whole = transformers.InstructBlipConfig(text_config=text, image_token_index=32_000)
    whole.architectures = ["InstructBlipForConditionalGeneration"]
    whole.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{}")
    write_qformer_tokenizer(tmp_path / "qformer_tokenizer")
    said = {
        "architectures": whole.architectures, "model_type": "instructblip", "text_config": text, "vision_config": {},
        "qformer_config": {}, "image_token_index": 32_000,
    }  # fmt: skip
    found = []
    for config in (json.loads((tmp_path / "config.json").read_text()), said):
        (tmp_path / "config.json").write_text(json.dumps(config))
        read = read_config(tmp_path)
        found.append((registry.family(read)(read), msgspec.structs.asdict(processor(read, tmp_path))))
    assert found[0] == found[1]
