"""Encoders beyond BERT's own: rotary positions, windows both ways, scores by distance, and what follows the pooled vector."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from rig import Rig, Seq
from test_encoders import hidden, pooled
from zoo import ENCODERS, VOCAB, describe_pooling, edit_config, make_checkpoint, make_classifier, make_encoder, spread

from thalweg.checkpoint.config import facts, read_config
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models import registry

MORE = sorted(set(ENCODERS) - {"bert", "roberta", "xlm-roberta"})
SLOW = pytest.mark.slow


def texts(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(3)  # RoBERTa's kin counts positions around the padding token, which no text holds
    return [rng.integers(3, VOCAB, n).tolist() for n in lengths or (31, 1, 150, 2)]


def close(path: Path, platform: str = "cpu", want: object = hidden, max_len: int = 256) -> None:
    """Mean vectors of the model's equal those of `want`, a text at a time."""
    describe_pooling(path, "mean_tokens")
    for got, ids in zip(pooled(Rig(path, platform=platform, max_len=max_len), texts()), texts(), strict=True):
        np.testing.assert_allclose(got, want(path, ids).mean(0), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "platform"),
    [
        *((n, "cpu") for n in MORE),
        *(pytest.param(n, "reference", marks=SLOW) for n in ("modernbert", "mpnet", "gemma3-both-ways", "deberta-v3")),
    ],
)
@pytest.mark.sampled(2)
def test_vectors_are_those_of_transformers(name: str, platform: str, tmp_path: Path) -> None:
    close(make_encoder(name, tmp_path), platform)


@pytest.mark.parametrize("name", ["modernbert", "nomic-bert"])
def test_compiled_attention_turns_and_bounds_as_it_attends(name: str, tmp_path: Path) -> None:
    rig = Rig(make_encoder(name, tmp_path), platform="cpu", max_len=256)
    if not any(k.name.startswith("native") for k in rig.device.kernels):
        pytest.skip("no compiled kernels here")
    assert {backend.name.partition("-avx")[0] for backend, _ in rig.model.attention} <= {
        "native-encoder",
        "native-encoder-portable",
    }


def test_a_window_that_no_text_outgrows_hides_nothing(tmp_path: Path) -> None:
    path = make_encoder("modernbert", tmp_path, local_attention=298)
    assert {g.kind for g in Rig(path, max_len=256).model.groups} == {"encoder"}
    assert [s.window for s in (spec for _, spec in Rig(path, max_len=149).model.attention)] == [0]
    close(path)


def test_older_files_of_modernbert_mean_the_same(tmp_path: Path) -> None:
    path = make_encoder("modernbert", tmp_path)
    config = read_config(path)
    new = registry.family(config)(config)
    edit_config(
        path, layer_types=None, rope_parameters=None, global_attn_every_n_layers=3, global_rope_theta=160_000.0,
        local_rope_theta=10_000.0,
    )  # fmt: skip
    config = read_config(path)
    assert registry.family(config)(config) == new


def test_a_masked_model_of_modernbert_keeps_the_same_encoder(tmp_path: Path) -> None:
    path = make_encoder("modernbert", tmp_path, transformers.AutoModelForMaskedLM)
    close(path)


def test_the_published_spelling_of_nomic_means_the_same(tmp_path: Path) -> None:
    path = make_encoder("nomic-bert", tmp_path)
    config = read_config(path)
    family = registry.family(config)
    new = family(config)
    edit_config(
        path, hidden_size=None, num_hidden_layers=None, num_attention_heads=None, intermediate_size=None, hidden_act=None,
        layer_norm_eps=None, max_position_embeddings=None, rope_parameters=None, n_embd=64, n_layer=2, n_head=4, n_inner=80,
        activation_function="swiglu", layer_norm_epsilon=1e-12, n_positions=8192, max_trained_positions=256,
        rotary_emb_base=1000, rotary_emb_fraction=1.0, rotary_scaling_factor=None, use_rms_norm=None,
    )  # fmt: skip
    config = read_config(path)
    assert family(config) == new
    assert facts(config, path).max_len == 256
    with pytest.raises(UnsupportedModelError, match="prenorm: True"):
        family({**config, "prenorm": True})


def test_a_llama_that_sees_both_ways(tmp_path: Path) -> None:
    path = make_encoder("llama", tmp_path)
    edit_config(path, architectures=["LlamaBidirectionalModel"], pooling="avg")
    model = transformers.LlamaModel.from_pretrained(path, attn_implementation="eager").eval()

    @torch.inference_mode()
    def seen(path: Path, ids: list[int]) -> np.ndarray:
        return model(torch.tensor([ids]), attention_mask=torch.zeros(1, 1, len(ids), len(ids))).last_hidden_state[0].numpy()

    assert registry.family(read_config(path))(read_config(path)).pooling.mode == "mean"
    close(path, want=seen)


@pytest.mark.parametrize("name", ["qwen2", "mistral"])
def test_a_decoder_that_is_not_causal_sees_both_ways(name: str, tmp_path: Path) -> None:
    """`is_causal` in config.json, as of gte-Qwen2. Mistral has a window."""
    more = {"sliding_window": 9} if name == "mistral" else {}
    path = make_encoder(name, tmp_path, is_causal=False, **more)
    assert read_config(path)["is_causal"] is False
    close(path)


def test_a_decoder_that_is_not_causal_does_not_generate(tmp_path: Path) -> None:
    path = make_checkpoint("qwen2", tmp_path, tokenizer=False)
    edit_config(path, is_causal=False)
    config = read_config(path)
    with pytest.raises(UnsupportedModelError, match=r"is_causal: false: .* --runner pooling"):
        registry.family(config)(config)
    path = make_encoder("lfm2", tmp_path)
    edit_config(path, is_causal=False, architectures=["Lfm2Model"])
    config = read_config(path)
    with pytest.raises(UnsupportedModelError, match="is_causal: false is not supported for this architecture"):
        registry.family(config)(config)


def test_a_qwen_that_sees_both_ways_and_makes_its_vectors_longer(tmp_path: Path) -> None:
    path = make_encoder("qwen3", tmp_path)
    weights, longer = path / "model.safetensors", torch.randn(72, 48, generator=torch.Generator().manual_seed(5))
    tensors = safetensors.torch.load_file(weights)
    safetensors.torch.save_file({**{f"model.{n}": t for n, t in tensors.items()}, "linear.weight": longer}, weights)
    edit_config(path, architectures=["VoyageQwen3BidirectionalEmbedModel"], num_labels=72)
    model = transformers.Qwen3Model.from_pretrained(
        make_encoder("qwen3", tmp_path / "bare"), attn_implementation="eager"
    ).eval()

    @torch.inference_mode()
    def seen(path: Path, ids: list[int]) -> np.ndarray:
        mask = torch.zeros(1, 1, len(ids), len(ids))
        return (model(torch.tensor([ids]), attention_mask=mask).last_hidden_state[0] @ longer.T).numpy()

    close(path, want=seen)


@pytest.mark.parametrize("name", ["qwen3", "eurobert"])
def test_a_low_rank_change_for_a_task_is_added_to_what_it_names(name: str, tmp_path: Path) -> None:
    path, merged = make_encoder(name, tmp_path), make_encoder(name, tmp_path / "merged")
    held, g, adapter = safetensors.torch.load_file(path / "model.safetensors"), torch.Generator().manual_seed(4), {}
    for i, part in ((0, "self_attn.q_proj"), (0, "mlp.down_proj"), (1, "self_attn.o_proj"), (1, "mlp.up_proj")):
        w = held[f"layers.{i}.{part}.weight"]
        down, up = torch.randn(3, w.shape[1], generator=g) / 5, torch.randn(w.shape[0], 3, generator=g) / 5
        at = f"base_model.model.layers.{i}.{part}"
        adapter |= {f"{at}.lora_A.weight": down, f"{at}.lora_B.weight": up}
        held[f"layers.{i}.{part}.weight"] = w + 2 * up @ down
    safetensors.torch.save_file(held, merged / "model.safetensors", {"format": "pt"})
    folder = path / "adapters" / "clustering"
    folder.mkdir(parents=True)
    safetensors.torch.save_file(adapter, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 3, "lora_alpha": 6, "bias": "none"}))
    tasks = {"task_names": ["retrieval", "clustering"], "is_decoder": name == "qwen3"}
    edit_config(path, architectures=["JinaEmbeddingsV5Model"], jina_task="clustering", **tasks)
    close(path, want=lambda _, ids: hidden(merged, ids))
    close(path, "thalweg.backends.torch_gpu.testing:HostGpuPlatform", lambda _, ids: hidden(merged, ids))  # reads files itself
    edit_config(path, jina_task="other")
    with pytest.raises(CheckpointError, match=r"jina_task: 'other' is not one of"):
        read_config(path)
    edit_config(path, jina_task="retrieval")  # which has none beside it
    assert registry.family(read_config(path))(read_config(path)).adapter is None
    edit_config(path, jina_task="clustering")
    safetensors.torch.save_file(
        {**adapter, "base_model.model.a.lora_A.weight": down.clone()}, folder / "adapter_model.safetensors"
    )
    with pytest.raises(CheckpointError, match=r"a\.lora_A\.weight: this part of an adapter changes no matrix"):
        Rig(path)
    (folder / "adapter_config.json").write_text(json.dumps({"r": 3, "lora_alpha": 6, "use_dora": True}))
    with pytest.raises(UnsupportedModelError, match="use_dora"):
        read_config(path)


@torch.inference_mode()
def numbers(path: Path, auto: type, ids: list[int]) -> np.ndarray:
    model = auto.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    return model(torch.tensor([ids])).logits[0].numpy()


@pytest.mark.parametrize(
    "name",
    [
        "deberta", "deberta-v3", "eurobert", "albert", "roformer", "xlm-roberta-xl", "megatron-bert", "rembert", "camembert",
        "data2vec-text", "electra-small",
    ],
)  # fmt: skip
@pytest.mark.sampled(2)
def test_classes_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    more = {"classifier_pooling": "mean"} if name == "eurobert" else {}
    path = make_classifier(name, tmp_path, 3, **more)
    for got, ids in zip(pooled(Rig(path, platform="cpu", max_len=256), texts()), texts(), strict=True):
        np.testing.assert_allclose(got, numbers(path, transformers.AutoModelForSequenceClassification, ids), atol=2e-5)


@pytest.mark.parametrize(
    "name", ["deberta-v3", "privacy-filter", "eurobert", "albert", "roformer", "xlm-roberta-xl", "megatron-bert", "rembert"]
)
@pytest.mark.sampled(2)
def test_classes_of_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    path = make_encoder(name, tmp_path, transformers.AutoModelForTokenClassification, num_labels=3)
    rig, (ids,) = Rig(path, platform="cpu"), texts(20)
    assert rig.model.spec.pooling.each
    x, _ = rig.model.forward(rig.params, rig.batch([(Seq(1, ids, 20), 20)]).map(torch.from_numpy), rig.box.value["kv"])
    got = rig.model.each(rig.params, x, torch.arange(20))
    np.testing.assert_allclose(got, numbers(path, transformers.AutoModelForTokenClassification, ids), atol=2e-5)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deberta-v3", {"relative_attention": False}), ("deberta-v3", {"pos_att_type": ["p2p"]}),
        ("deberta-v3", {"conv_kernel_size": 3}), ("deberta-v3", {"position_buckets": 200}),
        ("deberta", {"talking_head": True}), ("eurobert", {"architectures": ["EuroBertForSequenceClassification"]}),
    ],
)  # fmt: skip
def test_what_these_encoders_do_not_do_here_is_refused(name: str, said: dict, tmp_path: Path) -> None:
    config = {**read_config(make_encoder(name, tmp_path)), **said}
    with pytest.raises(UnsupportedModelError, match=next(iter(said)) if "architectures" not in said else "classifier_pooling"):
        registry.family(config)(config)


def test_gemma_that_generates_sees_what_was(tmp_path: Path) -> None:
    path = make_checkpoint("gemma3", tmp_path, tokenizer=False)
    config = {**read_config(path), "use_bidirectional_attention": True}
    with pytest.raises(UnsupportedModelError, match="use_bidirectional_attention"):
        registry.family(config)(config)


# ------------------------------------------------------------------ heads that guess words


def describe_splade(path: Path, **said: str) -> None:
    """The files of a sparse encoder, as sentence-transformers writes them."""
    kinds = [("", "models.MLMTransformer"), ("1_SpladePooling", "models.SpladePooling")]
    modules = [
        {"idx": i, "name": str(i), "path": folder, "type": f"sentence_transformers.sparse_encoder.{kind}"}
        for i, (folder, kind) in enumerate(kinds)
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_SpladePooling").mkdir(exist_ok=True)
    config = {"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": VOCAB, **said}
    (path / "1_SpladePooling" / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", ["distilbert", "xlm-roberta", "bert", "mpnet", "camembert"])
@pytest.mark.sampled(2)
def test_a_sparse_encoder_gives_the_weights_of_words(name: str, tmp_path: Path) -> None:
    path = make_encoder(name, tmp_path, transformers.AutoModelForMaskedLM)
    describe_splade(path)
    for got, ids in zip(pooled(Rig(path, platform="cpu", max_len=256), texts()), texts(), strict=True):
        logits = numbers(path, transformers.AutoModelForMaskedLM, ids)
        np.testing.assert_allclose(got, np.log1p(np.maximum(logits, 0)).max(0), atol=2e-5)


@pytest.mark.parametrize("name", ["albert", "electra", "megatron-bert", "rembert", "roformer", "deberta-v3", "ernie", "bert"])
@pytest.mark.sampled(2)
def test_a_masked_model_keeps_the_same_encoder(name: str, tmp_path: Path) -> None:
    close(make_encoder(name, tmp_path, transformers.AutoModelForMaskedLM))


def test_sparse_encoders_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = make_encoder("bert", tmp_path, transformers.AutoModelForMaskedLM)
    describe_splade(path, pooling_strategy="sum")
    with pytest.raises(UnsupportedModelError, match=r"pooling_strategy: 'sum' is not supported; only 'max' is"):
        read_config(path)
    path = make_encoder("electra", tmp_path, transformers.AutoModelForMaskedLM)
    describe_splade(path)
    config = read_config(path)
    with pytest.raises(UnsupportedModelError, match="SpladePooling"):
        registry.family(config)(config)


def test_vectors_of_contriever_are_not_normalised(tmp_path: Path) -> None:
    path = make_encoder("bert", tmp_path)
    edit_config(path, architectures=["Contriever"])
    config = read_config(path)
    tail = registry.family(config)(config).pooling
    assert tail is not None
    assert (tail.mode, tail.activate) == ("mean", False)
    close(path)


# ------------------------------------------------------------------ modules of sentence-transformers

WAYS = {
    "max_tokens": lambda h: h.max(0),
    "mean_sqrt_len_tokens": lambda h: h.sum(0) / len(h) ** 0.5,
    "weightedmean_tokens": lambda h: (h * np.arange(1, len(h) + 1)[:, None]).sum(0) / (len(h) * (len(h) + 1) / 2),
}


@pytest.mark.parametrize("mode", sorted(WAYS))
@pytest.mark.sampled(2)
def test_other_ways_of_pooling(mode: str, tmp_path: Path) -> None:
    path = make_encoder("distilbert", tmp_path)
    describe_pooling(path, mode)
    for got, ids in zip(pooled(Rig(path, platform="cpu", max_len=256), texts()), texts(), strict=True):
        np.testing.assert_allclose(got, WAYS[mode](hidden(path, ids)), atol=1e-5)


def add_dense(path: Path, folder: str, layer: torch.nn.Linear, act: str) -> None:
    """A Dense step behind the pooling, as sentence-transformers writes it."""
    modules = json.loads((path / "modules.json").read_text())
    modules.insert(-1, {"idx": 9, "name": folder, "path": folder, "type": "sentence_transformers.models.Dense"})
    (path / "modules.json").write_text(json.dumps(modules))
    (path / folder).mkdir()
    config = {"in_features": layer.in_features, "out_features": layer.out_features, "bias": layer.bias is not None}
    (path / folder / "config.json").write_text(json.dumps({**config, "activation_function": act}))
    tensors = {f"linear.{k}": v.detach().contiguous() for k, v in layer.named_parameters()}
    safetensors.torch.save_file(tensors, path / folder / "model.safetensors")


def test_vectors_go_through_dense_layers(tmp_path: Path) -> None:
    path = make_encoder("gemma3-both-ways", tmp_path)
    describe_pooling(path, "mean_tokens")
    first, second = torch.nn.Linear(48, 96, bias=False), torch.nn.Linear(96, 24)
    add_dense(path, "2_Dense", first, "torch.nn.modules.linear.Identity")
    add_dense(path, "3_Dense", second, "torch.nn.modules.activation.Tanh")
    rig = Rig(path, platform="cpu", max_len=256)
    assert rig.model.spec.result == 24
    for got, ids in zip(pooled(rig, texts()), texts(), strict=True):
        with torch.inference_mode():
            want = torch.tanh(second(first(torch.from_numpy(hidden(path, ids).mean(0))))).numpy()
        np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        ({"in_features": 47}, CheckpointError, "in_features: 47, of vectors with 48"),
        ({"in_features": "48"}, CheckpointError, "in_features: must be an integer"),
        ({"activation_function": "torch.nn.modules.activation.Mish"}, UnsupportedModelError, "Mish"),
        ({"bias": 1}, CheckpointError, "bias: must be true or false"),
        ({"bias": True}, CheckpointError, r"lacks 2_Dense/linear\.bias"),
    ],
)
def test_a_dense_layer_that_makes_no_sense_is_refused(said: dict, error: type, words: str, tmp_path: Path) -> None:
    path = make_encoder("distilbert", tmp_path)
    describe_pooling(path, "mean_tokens")
    add_dense(path, "2_Dense", torch.nn.Linear(48, 8, bias=False), "torch.nn.modules.linear.Identity")
    file = path / "2_Dense" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **said}))
    with pytest.raises(error, match=words):
        Rig(path)


@pytest.mark.parametrize(("kind", "projection"), [("Context", 0), ("Question", 24)])
def test_vectors_of_dpr_are_those_of_transformers(kind: str, projection: int, tmp_path: Path) -> None:
    config = transformers.DPRConfig(
        vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=80,
        max_position_embeddings=256, projection_dim=projection,
    )  # fmt: skip
    model = getattr(transformers, f"DPR{kind}Encoder")(config).eval()
    spread(model, 3)
    model.save_pretrained(tmp_path)
    rig = Rig(tmp_path, platform="cpu", max_len=256)
    for got, ids in zip(pooled(rig, texts()), texts(), strict=True):
        with torch.inference_mode():
            np.testing.assert_allclose(got, model(torch.tensor([ids])).pooler_output[0].numpy(), atol=1e-5)


@pytest.mark.parametrize("factor", [2.0, 8.0])
def test_positions_of_gte_are_stretched_as_its_authors_do(factor: float, tmp_path: Path) -> None:
    """`ntk` in every published file, which transformers does not compute. Its authors' formula replaces the frequencies."""
    path = make_encoder("gte", tmp_path)
    model = transformers.AutoModel.from_pretrained(path).eval()
    theta, dim = 500_000.0, 2 * len(model.rotary_emb.inv_freq)
    plain = (theta * factor) ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    model.rotary_emb.inv_freq = (plain / factor ** (2 / dim)).float()
    edit_config(path, rope_parameters=None, rope_theta=theta, rope_scaling={"factor": factor, "type": "ntk"})

    @torch.inference_mode()
    def want(path: Path, ids: list[int]) -> np.ndarray:
        return model(torch.tensor([ids])).last_hidden_state[0].numpy()

    close(path, want=want)
    edit_config(path, rope_scaling={"factor": factor, "type": "ntk", "mixed_b": 0.6})
    config = read_config(path)
    with pytest.raises(UnsupportedModelError, match="mixed_b: only null"):
        registry.family(config)(config)
