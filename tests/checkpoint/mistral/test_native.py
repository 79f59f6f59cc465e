"""Folders as Mistral publishes models: config, names, orders of rows, scales, tokenizers, and the flags that ask for them."""

from __future__ import annotations

import json
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from native_model import DATA, MOE, PARAMS, log_probabilities, make, save

from thalweg import LLM, SamplingParams
from thalweg.checkpoint import hub
from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.tokenizer import load_tokenizer
from thalweg.checkpoint.weights import open_weights
from thalweg.config import EngineArgs
from thalweg.engine.planning.memory import plan
from thalweg.errors import CheckpointError, ConfigError, UnsupportedModelError
from thalweg.hal.comm import Mesh
from thalweg.hal.discovery import load
from thalweg.hal.op import Binder
from thalweg.hal.ops.quantise import dequantise
from thalweg.hal.platform import Place
from thalweg.hal.weights import DENSE
from thalweg.models.build import build
from thalweg.models.files import Files
from thalweg.models.registry import windows
from thalweg.models.weights import walk
from thalweg.quantization import registry
from thalweg.text.sentencepiece import read_sentencepiece
from thalweg.text.tekken import load_tekken

EXPECTED = json.loads((DATA / "ids.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("native")
    make(path)
    return path


def told(path: Path, **more: Any) -> tuple[list[int], list[float], list[int]]:
    """(prompt, log-probabilities of greedy tokens, those tokens)."""
    llm = LLM(str(path), device="reference", dtype="float32", max_model_len=64, block_size=4, **more)
    prompt = np.random.default_rng(2).integers(40, 1240, 25).tolist()
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=0, detokenize=False)
    (out,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    ids = list(out.outputs[0].token_ids)
    return prompt, [step[t].logprob for step, t in zip(out.outputs[0].logprobs, ids, strict=True)], ids


@torch.inference_mode()
@pytest.mark.parametrize(
    "changes",
    [{}, MOE, {"sliding_window": 8}, {"sliding_window": [None, 8]}, {"head_dim": 12, "rope_theta": 5e5}],
    ids=["dense", "moe", "window", "windows", "odd"],
)  # fmt: skip
@pytest.mark.sampled(1)
def test_a_native_folder_computes_what_its_definition_says(changes, tmp_path):
    weights = make(tmp_path, files=3 if changes else 1, **changes)
    prompt, scores, ids = told(tmp_path)
    want = log_probabilities(weights, prompt + ids[:-1], **changes)[len(prompt) - 1 :]
    assert want.argmax(-1).tolist() == ids
    np.testing.assert_allclose(scores, want.amax(-1), atol=1e-4)


def test_float8_weights_and_their_scales_are_read(tmp_path):
    """One scale of each tensor, and one of its inputs; rows of q and k are put in order."""
    weights = make(tmp_path, quantization={"qformat_weight": "fp8_e4m3", "qscheme_act": "NO_SCALES"})
    coded, dense = dict(weights), dict(weights)
    for name, w in weights.items():
        if ".attention.w" in name or ".feed_forward." in name:
            scale = w.abs().max() / 448
            coded[name] = (w / scale).to(torch.float8_e4m3fn)
            coded[name.replace(".weight", ".qscale_weight")] = scale
            dense[name] = coded[name].float() * scale
    save(tmp_path, coded)
    path, device = tmp_path / "params.json", load("reference").open(Place())
    config = read_config(path, None, registry.check)
    assert config["quantization_config"]["activation_scheme"] == "dynamic"
    said = {"binder": Binder(()), "attention": device.attention, "mesh": Mesh(), "dtype": "float32", "max_len": 64}
    model = build(config, **said, block_tokens=4)
    files, seen = Files(model, open_weights(path), device), 0
    for spec in (s for _, s in walk(model.specs) if s.format != DENSE):
        names = [_native(s.name) for s in spec.sources]
        rows = [_halves(dense[n], {"wq": 4, "wk": 2}.get(n.split(".")[3], 0)) for n in names]
        assert torch.equal(dequantise(files.read(spec, 0).data, spec.format.group, torch.float32), torch.cat(rows)), names
        seen += 1
    assert seen == 8
    told(tmp_path)


NAMES = {
    "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2", "model.": "",
}  # fmt: skip


def _native(name: str) -> str:
    for new, old in NAMES.items():
        name = name.replace(new, old)
    return name


def _halves(w: torch.Tensor, heads: int) -> torch.Tensor:
    """As the script that transformers published for these files has it."""
    return w.view(heads, w.shape[0] // heads // 2, 2, w.shape[1]).transpose(1, 2).reshape(w.shape) if heads else w


def test_what_params_json_leaves_out_is_what_the_models_were_made_with(tmp_path, caplog):
    make(tmp_path / "a", rope_theta=None, max_seq_len=None)
    config = read_config(tmp_path / "a" / "params.json")
    assert config["rope_parameters"]["rope_theta"] == 1_000_000.0
    assert config["max_position_embeddings"] == 128_000
    assert "names no length of contexts" in caplog.text
    (tmp_path / "a" / "config.json").write_text('{"max_position_embeddings": 4096}')
    assert read_config(tmp_path / "a" / "params.json")["max_position_embeddings"] == 4096
    make(tmp_path / "b", rope_theta=None, sliding_window="8")
    config = read_config(tmp_path / "b" / "params.json")
    assert (config["rope_parameters"]["rope_theta"], config["sliding_window"]) == (10_000.0, 8)
    make(tmp_path / "c", sliding_window=[None, 8], n_layers=4)
    assert windows(read_config(tmp_path / "c" / "params.json")) == [0, 8, 0, 8]
    yarn = {"factor": 4.0, "original_max_position_embeddings": 32, "beta": 4.0, "alpha": 1.0, "apply_scale": False}
    make(tmp_path / "d", yarn=yarn)
    assert read_config(tmp_path / "d" / "params.json")["rope_parameters"] == {
        "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 4.0,
        "beta_slow": 1.0, "attention_factor": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"multimodal": {"whisper_model_args": {"dim": 8}}}, UnsupportedModelError, "multimodal: sound"),
        ({"model_type": "mamba"}, UnsupportedModelError, "model_type: 'mamba'"),
        ({"moe": {**MOE["moe"], "num_shared_experts": 1}}, UnsupportedModelError, "num_shared_experts"),
        ({"moe": {"num_experts": 4}}, CheckpointError, "moe: must be an object with num_experts and num_experts_per_tok"),
        ({"quantization": {"quant_method": "compressed-tensors"}}, UnsupportedModelError, "quantization: .* is not read"),
        ({"sliding_window": [4, 8]}, UnsupportedModelError, "sliding_window: must be a number, or a list"),
        ({"yarn": {"gamma": 1}}, UnsupportedModelError, "yarn: must have factor"),
    ],
)  # fmt: skip
def test_what_is_not_served_is_refused_by_key(changes, error, why, tmp_path):
    (tmp_path / "params.json").write_text(json.dumps({**PARAMS, **changes}))
    with pytest.raises(error, match=why):
        read_config(tmp_path / "params.json")


def test_unknown_keys_are_named_and_unknown_tensors_refused(tmp_path, caplog):
    weights = make(tmp_path, gamma=0.5)
    read_config(tmp_path / "params.json")
    assert "not honoured: gamma" in caplog.text
    save(tmp_path, {**weights, "layers.0.attention.sinks.weight": torch.zeros(4)})
    with pytest.raises(CheckpointError, match=r"tensor 'layers\.0\.attention\.sinks\.weight' is unknown in Mistral's format"):
        told(tmp_path)


# ---------------------------------------------------------------- flags


def both(folder: Path, tmp_path: Path) -> Path:
    """A folder with both formats: that of transformers comes first."""
    shutil.copytree(folder, tmp_path / "both")
    (tmp_path / "both" / "config.json").write_text("{}")
    return tmp_path / "both"


def test_a_folder_whose_only_weights_are_mistrals_is_read_by_params_json(folder, tmp_path):
    path = both(folder, tmp_path)
    assert hub.resolve_model(path) == path / "params.json"
    (path / "model.safetensors").touch()
    assert hub.resolve_model(path) == path


@pytest.mark.parametrize(
    ("there", "native", "asked"),
    [
        (["config.json", "model.safetensors", "params.json", "consolidated.safetensors"], None, ["hf"]),
        (["config.json", "model.safetensors", "params.json", "consolidated.safetensors"], True, ["mistral"]),
        (["params.json", "consolidated.safetensors"], None, ["hf", "mistral"]),
        (["params.json", "consolidated.safetensors"], True, ["mistral"]),
        (["config.json", "params.json", "consolidated.safetensors"], None, ["hf", "mistral"]),
    ],
)  # fmt: skip
def test_a_repository_is_downloaded_without_the_other_formats_weights(there, native, asked, tmp_path, monkeypatch):
    """As `huggingface_hub` would: files that match a pattern, and none that is to be ignored."""
    calls = []

    def download(repo, *, allow_patterns, ignore_patterns, **more):
        found = [f for f in there if any(fnmatch(f, p) for p in allow_patterns)]
        for f in found:
            if not any(fnmatch(f, p) for p in ignore_patterns):
                (tmp_path / f).touch()
        calls.append("hf" if any(fnmatch("consolidated.safetensors", p) for p in ignore_patterns) else "mistral")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    got = hub.resolve_model("org/name", ignore=EngineArgs().ignore_patterns, native=native)
    assert calls == asked
    assert got == (tmp_path if asked == ["hf"] else tmp_path / "params.json")
    weights = sorted(f.name for f in tmp_path.glob("*.safetensors"))
    assert weights == (["model.safetensors"] if asked == ["hf"] else ["consolidated.safetensors"])


@pytest.mark.slow
def test_the_flags_choose_between_the_formats_of_a_folder(folder, tmp_path):
    path = both(folder, tmp_path)
    (path / "model.safetensors").touch()
    assert hub.resolve_model(path) == path
    assert hub.resolve_model(path, native=True) == path / "params.json"
    assert hub.resolve_model(folder) == folder / "params.json"
    assert hub.resolve_model(folder / "params.json") == folder / "params.json"
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        hub.resolve_model(folder, native=False)
    for flag in ({"config_format": "mistral"}, {"load_format": "mistral"}):
        assert plan(EngineArgs(model=str(hub.resolve_model(path, native=True)), device="reference", **flag)).weights > 0
    _, _, ids = told(path, config_format="mistral", load_format="mistral", tokenizer_mode="mistral")
    assert ids == told(folder)[2]


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"config_format": "hf", "load_format": "mistral"}, "belong together, so set both to mistral"),
        ({"config_format": "mistral", "load_format": "safetensors"}, "belong together"),
        ({"config_format": "other"}, "config_format must be one of auto, hf, mistral"),
        ({"tokenizer_mode": "fastokens"}, "tokenizer_mode: fastokens: the tokenizer of the model's files"),
        ({"tokenizer_mode": "other"}, "tokenizer_mode must be one of auto, hf, slow, mistral"),
    ],
)  # fmt: skip
@pytest.mark.sampled(1)
def test_flags_that_contradict_or_are_not_known_are_refused(flags, why, folder):
    with pytest.raises(ConfigError, match=why):
        LLM(str(folder), device="reference", **flags)


def test_mistral_is_refused_where_its_files_are_not(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"has no params\.json"):
        LLM(str(tmp_path), device="reference", load_format="mistral")
    with pytest.raises(CheckpointError, match=r"tokenizer_mode: mistral: .* has neither tekken\.json nor"):
        load_tokenizer(tmp_path, "mistral")


def test_a_conversation_without_a_template_says_what_to_do(folder):
    llm = LLM(str(folder), device="reference", dtype="float32", max_model_len=64)
    with pytest.raises(Exception, match="chat_template: the model has none; pass chat_template="):
        llm.chat([{"role": "user", "content": "hi"}])


# ---------------------------------------------------------------- tokenizers


@pytest.mark.parametrize("name", ["tekken.json", "tokenizer.model.v7"])
def test_tokens_are_those_of_mistral_common(name, tmp_path):
    shutil.copy(DATA / name, tmp_path)
    tok = load_tokenizer(tmp_path)
    for text, ids in zip(EXPECTED["texts"], EXPECTED["ids"][name], strict=True):
        assert tok.encode(text) == ids, text
        assert tok.decode(ids) == text
    assert (tok.bos_id, tok.eos_ids) == (1, (2,))
    assert tok.encode("[INST]", add_special_tokens=False) == [3]


def test_the_newest_file_and_the_templates_beside_it_are_taken(tmp_path):
    for name in ("tokenizer.model", "tokenizer.model.v3", "tokenizer.model.v7"):
        shutil.copy(DATA / "tokenizer.model.v7", tmp_path / name)
    (tmp_path / "tokenizer.model.v3").write_bytes(b"broken")
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert load_tokenizer(tmp_path, "mistral").chat_template == "{{ messages }}"
    shutil.copy(DATA / "tekken.json", tmp_path)
    assert load_tokenizer(tmp_path).vocab_size == 1240
    (tmp_path / "tokenizer.json").write_text("{}")  # comes first, unless the mode says otherwise
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
    assert load_tokenizer(tmp_path, "mistral").vocab_size == 1240


def broken(change: Any) -> dict[str, Any]:
    said = json.loads((DATA / "tekken.json").read_text())
    change(said)
    return said


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d.pop("config"), "config: must be an object"),
        (lambda d: d["config"].update(default_vocab_size=10**9), "default_vocab_size and default_num_special_tokens"),
        (lambda d: d["config"].update(default_vocab_size=2000), "vocab: must list the 1960 tokens"),
        (lambda d: d["config"].update(pattern="("), "config: pattern"),
        (lambda d: d["config"].update(version="v11"), "special_tokens: missing, which files of version 'v11'"),
        (lambda d: d.update(special_tokens=[{"rank": 1, "token_str": "a"}]), "special_tokens: entry 0 must have rank 0"),
        (lambda d: d.update(special_tokens=[{"rank": i, "token_str": "a"} for i in range(2)]), "two tokens are the same"),
        (lambda d: d["vocab"][300].update(token_bytes="?"), "vocab: entry 300 must have rank 300"),
        (lambda d: d["vocab"][3].update(token_bytes="QQ=="), "vocab: entry 3 must have rank 3"),
        (lambda d: d["vocab"][300].update(token_bytes=d["vocab"][301]["token_bytes"]), "two tokens are the same"),
    ],
)  # fmt: skip
def test_a_broken_tekken_file_is_refused_by_key(change, why, tmp_path):
    (tmp_path / "tekken.json").write_text(json.dumps(broken(change)))
    with pytest.raises(CheckpointError, match=why):
        load_tekken(tmp_path / "tekken.json")


def test_special_tokens_may_be_named_and_may_be_no_control_tokens(tmp_path):
    named = [{"rank": i, "token_str": t, "is_control": i != 3} for i, t in enumerate(("<unk>", "<s>", "</s>", "[THINK]"))]
    (tmp_path / "tekken.json").write_text(json.dumps(broken(lambda d: d.update(special_tokens=named))))
    tok = load_tokenizer(tmp_path)
    assert tok.encode("[THINK]", add_special_tokens=False) == [3]
    assert tok.decode([1, 3]) == "[THINK]"
    assert tok.token_of(39) == "<SPECIAL_39>"


@pytest.mark.parametrize("cut", [1, 100, 20_000])
def test_a_broken_sentencepiece_file_is_refused(cut, tmp_path):
    data = (DATA / "tokenizer.model.v7").read_bytes()
    (tmp_path / "m").write_bytes(data[:-cut])
    with pytest.raises((CheckpointError, UnsupportedModelError), match=str(tmp_path / "m")):
        read_sentencepiece(tmp_path / "m")
    (tmp_path / "m").write_bytes(data[cut:])
    with pytest.raises((CheckpointError, UnsupportedModelError), match=str(tmp_path / "m")):
        read_sentencepiece(tmp_path / "m")
