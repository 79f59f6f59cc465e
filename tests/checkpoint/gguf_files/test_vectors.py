"""GGUF files of text encoders, written by the `gguf` package, against the models of transformers that they were made of."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from converted import convert, convert_encoder
from zoo import make_bert_tokenizer, make_checkpoint, make_encoder, make_tokenizer

from thalweg import LLM
from thalweg.checkpoint.config import facts, read_config
from thalweg.checkpoint.tokenizer import load_tokenizer
from thalweg.errors import CheckpointError, UnsupportedModelError

TEXTS = ["hello world", "a", "the quick brown fox. jumps, over: the lazy dog", "", "Größe ЁÉ 中文 zz9z", "x" * 40 + " y"]
POOL = {
    gguf.PoolingType.MEAN: lambda h: h.mean(0), gguf.PoolingType.CLS: lambda h: h[0], gguf.PoolingType.LAST: lambda h: h[-1],
}  # fmt: skip


def made(name: str, directory: Path, **more) -> Path:
    path = make_encoder(name, directory, **more)
    make_bert_tokenizer(path)
    return path


def embedded(path: Path, texts: list[str] = TEXTS, **more) -> np.ndarray:
    llm = LLM(str(path), device="reference", dtype="float32", max_model_len=100, **more)
    return np.array([o.outputs.embedding for o in llm.embed(texts, use_tqdm=False)])


@torch.inference_mode()
def expected(path: Path, ids: list[list[int]], pooling: gguf.PoolingType) -> np.ndarray:
    model = transformers.AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    made = [POOL[pooling](model(torch.tensor([i])).last_hidden_state[0].numpy()) for i in ids]
    return np.array([v / np.linalg.norm(v) for v in made])


@pytest.mark.parametrize("pooling", sorted(POOL))
@pytest.mark.parametrize("family", ["bert", "nomic-bert", "modernbert", "roberta", "xlm-roberta"])
@pytest.mark.slow
def test_vectors_are_those_of_the_model_that_a_file_was_made_of(family, pooling, tmp_path):
    """Names, positions (cut off before the first one of RoBERTa's), pooling and vocabulary."""
    source = made(family, tmp_path)
    file = convert_encoder(source, tmp_path / "m.gguf", pooling)
    tokenizer, theirs = load_tokenizer(file), load_tokenizer(source)
    ids = [theirs.encode(t) for t in TEXTS]
    assert [tokenizer.encode(t) for t in TEXTS] == ids
    np.testing.assert_allclose(embedded(file), expected(source, ids, pooling), atol=1e-5)
    assert facts(read_config(file), file).max_len == 256


@pytest.mark.slow
def test_a_file_may_name_the_activation_of_modernbert(tmp_path):
    source = made("modernbert", tmp_path, hidden_activation="silu")
    file = convert_encoder(source, tmp_path / "m.gguf")
    ids = [load_tokenizer(source).encode(t) for t in TEXTS]
    np.testing.assert_allclose(embedded(file), expected(source, ids, gguf.PoolingType.MEAN), atol=1e-5)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F16"])
@pytest.mark.sampled(1)
def test_layers_stay_in_blocks(kind, tmp_path):
    source = made("bert", tmp_path, hidden_size=64, intermediate_size=96)
    file = convert_encoder(source, tmp_path / "m.gguf", kind=lambda name, shape: kind, dense=tmp_path / "dense")
    ids = [load_tokenizer(file).encode(t) for t in TEXTS]
    np.testing.assert_allclose(embedded(file), expected(tmp_path / "dense", ids, gguf.PoolingType.MEAN), atol=1e-5)
    types = read_config(file, None, lambda found: None).get("quantization_config", {}).get("types", {})
    assert set(types.values()) == ({kind} - {"F16"})
    assert ("encoder.layer.0.attention.self.query" in types) == (kind != "F16")


@pytest.mark.slow
def test_how_a_file_pools_may_be_unsaid_or_overruled(tmp_path):
    source = made("bert", tmp_path)
    silent = convert_encoder(source, tmp_path / "m.gguf", None)
    said = convert_encoder(source, tmp_path / "n.gguf", gguf.PoolingType.CLS)
    mean = convert_encoder(source, tmp_path / "o.gguf", gguf.PoolingType.MEAN)
    assert "pooling" not in read_config(silent)
    assert read_config(said)["pooling"] == {"mode": "cls", "normalise": True}
    np.testing.assert_array_equal(embedded(silent), embedded(said))
    np.testing.assert_array_equal(embedded(said, pooler_config={"pooling_type": "MEAN"}), embedded(mean))


def test_a_decoder_whose_file_pools_gives_vectors(tmp_path):
    """Qwen3-Embedding's files are of the architecture qwen3, and name the last token."""
    source = make_checkpoint("qwen3", tmp_path)
    file = convert(source, tmp_path / "m.gguf", edit=lambda w: w.add_pooling_type(gguf.PoolingType.LAST))
    texts = [t for t in TEXTS if t]
    ids = [load_tokenizer(source).encode(t) for t in texts]
    np.testing.assert_allclose(embedded(file, texts), expected(source, ids, gguf.PoolingType.LAST), atol=1e-5)


@pytest.mark.parametrize("layers", [0, 2])
def test_embedding_gemma_gives_vectors_after_its_dense_layers(layers, tmp_path):
    """Files have them or not, as the converter was told. Windows and bases differ by layer."""
    source = make_encoder("gemma3-both-ways", tmp_path, query_pre_attn_scalar=16)
    make_tokenizer(source)
    g = np.random.default_rng(3)
    sizes = [(f"dense_{i + 2}.weight", shape) for i, shape in enumerate([(72, 48), (48, 72)][:layers])]
    dense = {name: g.standard_normal(shape).astype(np.float32) for name, shape in sizes}

    def edit(w: gguf.GGUFWriter) -> None:
        w.add_pooling_type(gguf.PoolingType.MEAN)
        for name, values in dense.items():
            w.add_tensor(name, values)

    file = convert(source, tmp_path / "m.gguf", edit=edit)
    texts = [t for t in TEXTS if t]
    ids = [load_tokenizer(source).encode(t) for t in texts]
    model = transformers.AutoModel.from_pretrained(source, dtype=torch.float32, attn_implementation="eager").eval()
    want = []
    for each in ids:
        with torch.inference_mode():
            x = model(torch.tensor([each])).last_hidden_state[0].mean(0).numpy()
        for values in dense.values():
            x = values @ x
        want.append(x / np.linalg.norm(x))
    np.testing.assert_allclose(embedded(file, texts), np.array(want), atol=1e-5)


def _head(w: gguf.GGUFWriter) -> None:
    w.add_tensor("cls.output.weight", np.zeros((1, 48), np.float32))


def _without(key: str):
    return lambda w: w.kv_data[0].pop(key)


def _pools(w: gguf.GGUFWriter) -> None:
    w.kv_data[0].pop("bert.pooling_type")
    w.add_pooling_type(gguf.PoolingType.RANK)


def _unknown(w: gguf.GGUFWriter) -> None:
    w.kv_data[0].pop("tokenizer.ggml.unknown_token_id")


@pytest.mark.parametrize(
    ("edit", "error", "why"),
    [
        (_head, UnsupportedModelError, r"has a head that classifies \(cls\.\*\)"),
        (_pools, UnsupportedModelError, r"bert\.pooling_type: 4 is not read .* 1 \(mean\), 2 \(cls\), 3 \(last\)"),
        (_without("bert.attention.layer_norm_epsilon"), CheckpointError, r"bert\.attention\.layer_norm_epsilon: missing"),
        (_unknown, CheckpointError, r"tokenizer\.ggml\.unknown_token_id: missing"),
    ],
)  # fmt: skip
@pytest.mark.sampled(1)
def test_what_is_missing_or_not_read_is_refused_by_key(edit, error, why, tmp_path):
    file = convert_encoder(made("bert", tmp_path), tmp_path / "m.gguf", edit=edit)
    with pytest.raises(error, match=why):
        embedded(file)
