"""A module for multi-token prediction in the target's steps: its drafts are those of the published formula, and no text depends
on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from draft_rounds import record_rounds
from safetensors.torch import load_file, save_file
from test_draft_model import HOST, KINDS
from torch import Tensor, nn
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer, DeepseekV3RMSNorm
from transformers.models.deepseek_v32 import modeling_deepseek_v32 as v32
from transformers.models.ernie4_5_moe import modeling_ernie4_5_moe as ernie
from transformers.models.exaone_moe import modeling_exaone_moe as exaone
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeDecoderLayer, Glm4MoeRMSNorm
from transformers.models.glm4_moe_lite.modeling_glm4_moe_lite import Glm4MoeLiteDecoderLayer, Glm4MoeLiteRMSNorm
from transformers.models.nemotron_h import modeling_nemotron_h as nemotron
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RMSNorm
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as qwen3_5_moe
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next
from zoo import ALL, SMALL, make_tokenizer, spread

from thalweg import LLM, SamplingParams
from thalweg.config import EngineArgs
from thalweg.drafters import configure
from thalweg.engine.control.speculation.gain import Gain
from thalweg.engine.planning.memory import plan
from thalweg.errors import CheckpointError, ConfigError, ThalwegError
from thalweg.models.layered_proposer import LayeredProposer

MOST = 3
DRAFT = {"method": "mtp", "num_speculative_tokens": MOST}
PROMPTS = [[5, 6, 7, 8, 5, 6, 7, 8, 5], [11, 3, 99], list(range(40, 73)), [200, 7]]


@dataclass(frozen=True)
class Family:
    config: Any
    layer: Any
    norm: Any
    at: str
    """Prefix of the module's tensors."""
    names: dict[str, str]
    """Of its norms and its projection there."""
    changes: dict[str, Any]
    """Of config.json."""
    hidden_first: bool = False
    layers: tuple[int, ...] = (-1,)
    """Of the target, by number: the module's have their kinds."""
    inside: str = ""
    """Names of the module's layers below its prefix."""
    window: int = 0
    """Of the module's attention. 0: it is full."""
    count: str = "num_nextn_predict_layers"
    """Key of config.json: the number of modules."""
    renamed: tuple[tuple[str, str], ...] | None = None
    """Parts of names of the module's layer in the files, where those are not written as the target's. None: they are."""
    turns: tuple[str, ...] = ()
    """Arguments of the rotary embedding: the kind of the module's layer."""
    raw: bool = False
    """Hidden states are those before norms."""


_GLM, _GLM_SIZES = ALL["glm4-moe"]
_V3, _V3_SIZES = ALL["deepseek-v3"]
_LITE, _LITE_SIZES = ALL["glm4-moe-lite"]
_NEXTN = {"token": "enorm", "hidden": "hnorm", "final": "shared_head.norm", "proj": "eh_proj"}
_FC = {"token": "pre_fc_norm_embedding", "hidden": "pre_fc_norm_hidden", "final": "norm", "proj": "fc"}


def _sizes(name: str, **more: Any) -> Any:
    kind, sizes = ALL[name]
    return partial(kind, **{**SMALL, **sizes, **more})


FAMILIES = {
    "mimo": Family(
        partial(transformers.Qwen2Config, **SMALL), Qwen2DecoderLayer, Qwen2RMSNorm, "model.mtp_layers.0.",
        {"token": "token_layernorm", "hidden": "hidden_layernorm", "final": "final_layernorm", "proj": "input_proj"},
        {"architectures": ["MiMoForCausalLM"], "model_type": "mimo"}, True,
    ),
    "glm": Family(
        partial(_GLM, **{**SMALL, **_GLM_SIZES}), Glm4MoeDecoderLayer, Glm4MoeRMSNorm, "model.layers.2.",
        _NEXTN, {"architectures": ["Glm4MoeForCausalLM"]}, False,
    ),
    "glm_lite": Family(
        partial(_LITE, **{**SMALL, **_LITE_SIZES}), Glm4MoeLiteDecoderLayer, Glm4MoeLiteRMSNorm, "model.layers.2.",
        _NEXTN, {"architectures": ["Glm4MoeLiteForCausalLM"]}, False,
    ),
    "deepseek": Family(
        partial(_V3, **{**SMALL, **_V3_SIZES}), DeepseekV3DecoderLayer, DeepseekV3RMSNorm, "model.layers.3.",
        _NEXTN, {"architectures": ["DeepseekV3ForCausalLM"]}, False,
    ),
    "deepseek_v32": Family(
        _sizes("deepseek-v32"), v32.DeepseekV32DecoderLayer, v32.DeepseekV32RMSNorm, "model.layers.2.", _NEXTN,
        {"architectures": ["DeepseekV32ForCausalLM"]},
    ),
    "qwen3_next": Family(
        _sizes("qwen3-next"), qwen3_next.Qwen3NextDecoderLayer, qwen3_next.Qwen3NextRMSNorm, "mtp.", _FC,
        {"architectures": ["Qwen3NextForCausalLM"]}, layers=(2,), inside="layers.{}.",
    ),
    "qwen3_5": Family(
        _sizes("qwen3.5", tie_word_embeddings=False), qwen3_5.Qwen3_5DecoderLayer, qwen3_5.Qwen3_5RMSNorm, "mtp.", _FC,
        {"architectures": ["Qwen3_5ForCausalLM"]}, layers=(1,), inside="layers.{}.", count="mtp_num_hidden_layers",
    ),
    "qwen3_5_moe": Family(
        _sizes("qwen3.5-moe"), qwen3_5_moe.Qwen3_5MoeDecoderLayer, qwen3_5_moe.Qwen3_5MoeRMSNorm, "mtp.", _FC,
        {"architectures": ["Qwen3_5MoeForCausalLM"]}, layers=(3,), inside="layers.{}.", count="mtp_num_hidden_layers",
    ),
    "ernie": Family(
        _sizes("ernie4.5-moe", tie_word_embeddings=False), ernie.Ernie4_5_MoeDecoderLayer, ernie.Ernie4_5_MoeRMSNorm,
        "model.mtp_", {"token": "emb_norm.0", "hidden": "hidden_norm.0", "proj": "linear_proj.0"},
        {"architectures": ["Ernie4_5_MoeForCausalLM"]}, layers=(0,), inside="block.{}.",
    ),
    "exaone": Family(
        _sizes("exaone-moe"), exaone.ExaoneMoeDecoderLayer, exaone.ExaoneMoeRMSNorm, "mtp.", _FC,
        {"architectures": ["ExaoneMoEForCausalLM"], "mtp_layer_types": ["sliding_attention"]}, layers=(0,), inside="layers.{}.",
        window=9,
    ),
    "nemotron": Family(
        _sizes("nemotron-h"), nemotron.NemotronHBlock, nemotron.NemotronHRMSNorm, "mtp.",
        {"token": "layers.0.enorm", "hidden": "layers.0.hnorm", "final": "layers.1.final_layernorm",
         "proj": "layers.0.eh_proj"},
        {"architectures": ["NemotronHForCausalLM"], "mtp_hybrid_override_pattern": "*E"}, layers=(2, 6), inside="layers.{}.",
    ),
}  # fmt: skip


class Published(nn.Module):
    """The published computation: a model, and a module that reads its hidden states. Many of its drafts are right."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.family = family = FAMILIES[name]
        self.settings = family.config(attn_implementation="eager")
        self.target = self.make_target()
        size, e = self.settings.hidden_size, 1e-5
        self.layers = nn.ModuleList(family.layer(self.settings, i % self.settings.num_hidden_layers) for i in family.layers)
        self.norms = nn.ModuleDict({f"{k}_norm": family.norm(size, e) for k in family.names if k != "proj"})
        self.input_proj = nn.Linear(2 * size, size, bias=False)
        self.eval().requires_grad_(False)
        spread(self, 4)
        for name, p in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                p.mul_(0.5 if name.startswith("layers.") else 0.05)
        parts = self.input_proj.weight.split(size, 1)
        hidden, token = parts if family.hidden_first else parts[::-1]
        hidden *= 0.15
        token.copy_(torch.eye(size))
        base = self.target.model
        self.last, self.table = getattr(base, "norm", None) or base.norm_f, base.get_input_embeddings()
        self.sums: list[Tensor] = []
        self.last.register_forward_pre_hook(lambda _, args: self.sums.append(args[0]))
        if "final_norm" in self.norms:
            self.norms["final_norm"].weight.copy_(self.last.weight)

    def make_target(self) -> Any:
        return transformers.AutoModelForCausalLM.from_config(self.settings, dtype=torch.float32)

    def save(self, path: Path) -> None:
        tensors, at, names = self._written(path), self.family.at, self.family.names
        for name, t in self.layers.state_dict().items() if self.family.renamed is not None else ():
            for old, new in self.family.renamed or ():
                name = name.replace(old, new)
            tensors[f"{at}{name.removeprefix('0.')}"] = t
        for i, kind in enumerate(self.family.layers if self.family.renamed is None else ()):
            place = kind % self.settings.num_hidden_layers
            own, self.target.model.layers[place] = self.target.model.layers[place], self.layers[i]
            for name, t in self._written(path).items():
                if (mark := f".layers.{place}.") in name:
                    tensors[f"{at}{self.family.inside.format(i)}{name.split(mark, 1)[1]}"] = t
            self.target.model.layers[place] = own
        tensors |= {f"{at}{names[n]}.weight": self.norms[f"{n}_norm"].weight for n in names if n != "proj"}
        save_file(tensors | {f"{at}{names['proj']}.weight": self.input_proj.weight}, path / "model.safetensors")
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(self.describe({**config, **self.family.changes})))
        make_tokenizer(path)

    def describe(self, config: dict[str, Any]) -> dict[str, Any]:
        """config.json, by that of the target."""
        return {**config, self.family.count: 1}

    def _written(self, path: Path) -> dict[str, Tensor]:
        """The tensors of the target, with the names that its files have."""
        self.target.save_pretrained(path)
        return load_file(path / "model.safetensors")

    def drafts(self, known: list[int], count: int) -> tuple[list[int], Tensor]:
        """After the newest of these tokens, with the log-probabilities [count, vocab] of each. The module runs again over its
        own output for each further draft."""
        model = self.target.model
        hidden = list(model(torch.tensor([known[:-1]])).last_hidden_state[0])
        hidden = list(self.sums[-1][0]) if self.family.raw else hidden
        tokens, logits = list(known), list[Tensor]()
        for _ in range(count):
            out = self._run(torch.stack(hidden), torch.tensor(tokens[1:]))[-1]
            normed = self.norms["final_norm"](out) if "final_norm" in self.norms else out
            logits.append(self.target.lm_head.weight @ normed)
            tokens.append(int(logits[-1].argmax()))
            hidden.append(out if self.family.raw else normed)
        return tokens[len(known) :], torch.stack(logits).log_softmax(-1)

    def _run(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        model, n = self.target.model, len(tokens)
        both = self.norms["hidden_norm"](hidden), self.norms["token_norm"](self.table(tokens))
        x = self.input_proj(torch.cat(both if self.family.hidden_first else both[::-1], -1))[None]
        mask = torch.full((1, 1, n, n), -torch.inf).triu(1)
        if self.family.window:
            mask += torch.full((1, 1, n, n), -torch.inf).tril(-self.family.window)
        turns = {}
        if hasattr(model, "rotary_emb"):
            turns = {"position_embeddings": model.rotary_emb(x, torch.arange(n)[None], *self.family.turns)}
        for layer in self.layers:
            x = layer(x, attention_mask=mask, **turns)
            x = x[0] if isinstance(x, tuple) else x
        return x[0]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gain, "allows", lambda self, streams: True)  # whatever this machine's clock says


def make(name: str, factory: pytest.TempPathFactory) -> tuple[Published, Path]:
    model, path = Published(name), factory.mktemp("mtp") / name
    model.save(path)
    return model, path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Published, Path]]:
    """The model and the checkpoint of a family, made once."""
    return cache(lambda name: make(name, tmp_path_factory))


@pytest.fixture(scope="module")
def mimo(made: Callable[[str], tuple[Published, Path]]) -> tuple[Published, Path]:
    return made("mimo")


def serve(path: Path, drafts: Any, **args: Any) -> LLM:
    sizes = {"max_model_len": 96, "max_num_seqs": 4, "dtype": "float32", "block_size": 8, "device": "cpu"}
    return LLM(str(path), seed=0, speculative_config=drafts, use_tqdm_on_load=False, **{**sizes, **args})


@pytest.mark.parametrize("device", ["cpu", HOST])
@pytest.mark.slow
def test_drafts_are_those_of_the_published_formula(
    mimo: tuple[Published, Path], device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Round by round, of prompts in chunks and with prefix hits, after accepted, rejected and partly accepted drafts. A device
    with graphs captures the steps that propose."""
    seen = record_rounds(monkeypatch)
    model, path = mimo
    llm = serve(path, DRAFT, max_num_batched_tokens=24, device=device)
    params = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)
    for _ in range(2):
        llm.generate([{"prompt_token_ids": p} for p in PROMPTS], params, use_tqdm=False)
    stats = llm.stats()
    llm.shutdown()
    assert stats.prefix_hits
    assert "without a graph" not in caplog.text
    right = sum(model.drafts(known, MOST)[0] == drafts for known, drafts in seen)
    assert stats.draft_tokens > stats.accepted_tokens > stats.accepted_per_position[0] > 10
    assert right >= 0.99 * len(seen)
    assert len(seen) > 30


def check_log_probabilities(model: Published, path: Path, prompt: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one sequence: after its prompt, then after right and wrong drafts."""
    found: list[tuple[int, Tensor]] = []
    choose = LayeredProposer._choose

    def record(self: LayeredProposer, params: Any, x: Tensor, batch: Any, position: Tensor) -> Tensor:
        found.append((int(position[0]), self._head.logits(params, x)[0].log_softmax(-1).clone()))
        return choose(self, params, x, batch, position)

    monkeypatch.setattr(LayeredProposer, "_choose", record)
    llm = serve(path, DRAFT, max_num_batched_tokens=24, max_num_seqs=1, enforce_eager=True)
    params = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)
    out = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)[0].outputs[0]
    llm.shutdown()
    ids, rounds = [*prompt, *out.token_ids], 0
    for first in range(0, len(found), MOST):
        known = ids[: found[first][0] + 1]
        if len(known) > len(prompt):
            want = model.drafts(known, MOST)[1]
            torch.testing.assert_close(torch.stack([x for _, x in found[first : first + MOST]]), want, atol=1e-4, rtol=0)
            rounds += 1
    assert rounds > 5


@pytest.mark.parametrize(
    ("family", "at"),
    [
        ("mimo", 0), ("mimo", 2),
        *((name, 3) for name in ("deepseek_v32", "qwen3_next", "ernie", "nemotron", "glm")),
        *((name, 3) for name in ("glm_lite", "deepseek", "qwen3_5", "qwen3_5_moe", "exaone")),
    ],
)  # fmt: skip
@pytest.mark.sampled(1, 7)
def test_log_probabilities_of_drafts_are_those_of_the_published_formula(
    family: str, at: int, made: Callable[[str], tuple[Published, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_log_probabilities(*made(family), PROMPTS[at], monkeypatch)


def texts(path: Path, drafts: Any, **args: Any) -> tuple[list[Any], Any]:
    llm = serve(path, drafts, **args)
    try:
        work = [(p, {"max_tokens": 24, "temperature": 0, "ignore_eos": True} | kind) for kind in KINDS for p in PROMPTS]
        prompts = [{"prompt_token_ids": p} for p, _ in work]
        outs = llm.generate(prompts, [SamplingParams(**kind) for _, kind in work], use_tqdm=False)
        return [(c.text, tuple(c.token_ids), c.stop_reason, c.logprobs) for o in outs for c in o.outputs], llm.stats()
    finally:
        llm.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("mimo", {}),
        *(
            pytest.param(name, {}, marks=pytest.mark.nightly)
            for name in ("qwen3_next", "qwen3_5_moe", "deepseek_v32", "nemotron", "exaone")
        ),
        pytest.param("mimo", {"device": HOST}, marks=pytest.mark.nightly),
        pytest.param("mimo", {"tensor_parallel_size": 2}, marks=pytest.mark.nightly),
        pytest.param("deepseek", {"tensor_parallel_size": 2, "enable_expert_parallel": True}, marks=pytest.mark.nightly),
    ],
)
def test_text_is_the_same_with_a_module(
    family: str, more: dict[str, Any], made: Callable[[str], tuple[Published, Path]]
) -> None:
    """Sequences give way to others, prompts come in chunks next to drafts, and prefixes are found."""
    tight, path = {"num_gpu_blocks_override": 14, "max_num_batched_tokens": 24, **more}, made(family)[1]
    without, _ = texts(path, None, **tight)
    with_drafts, stats = texts(path, DRAFT, **tight)
    assert with_drafts == without
    assert stats.preemptions
    assert stats.draft_tokens > stats.accepted_tokens > (10 if family == "mimo" else 0)


def test_the_plan_counts_the_module(mimo: tuple[Published, Path]) -> None:
    args: dict[str, Any] = {"model": str(mimo[1]), "device": "cpu", "max_model_len": 96, "dtype": "float32"}
    target, both = plan(EngineArgs(**args)), plan(EngineArgs(**args, speculative_config=DRAFT))
    held = sum(t.numel() * 4 for n, t in load_file(mimo[1] / "model.safetensors").items() if n.startswith(FAMILIES["mimo"].at))
    table = 96 * (SMALL["hidden_size"] // SMALL["num_attention_heads"]) * 4
    assert both.weights == target.weights + held + table
    assert both.kv_per_token == target.kv_per_token * 3 // 2  # two layers, and the module's


@pytest.mark.slow
def test_modules_that_cannot_be_run_are_refused_in_words(mimo: tuple[Published, Path], tmp_path: Path) -> None:
    for config, args, words in (
        ({"model": str(mimo[1])}, {}, "'model' is not supported; mtp has method"),
        ({"num_speculative_tokens": 17}, {}, "must be a whole number from 1 to 16"),
        ({}, {"hf_overrides": {"num_nextn_predict_layers": 0}}, "MiMoForCausalLM has no module"),
    ):
        with pytest.raises(ThalwegError, match=words):
            serve(mimo[1], {**DRAFT, **config}, **args)
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        if (mimo[1] / name).exists():
            (bare / name).write_bytes((mimo[1] / name).read_bytes())
    tensors = load_file(mimo[1] / "model.safetensors")
    save_file({n: t for n, t in tensors.items() if not n.startswith(FAMILIES["mimo"].at)}, bare / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks .*mtp_layers"):
        serve(bare, DRAFT)


def test_bounds_by_the_number_of_sequences_are_read_in_both_forms_of_vllm() -> None:
    rows, said = ((1, 3), (9, 1), (65, 0)), {"method": "mtp", "num_speculative_tokens": 3}
    for form in ({"1-8": 3, "9-16": 1, "65-4096": 0}, [[1, 8, 3], [9, 16, 1], [65, 4096, 0]]):
        assert configure({**said, "num_speculative_tokens_per_batch_size": form}).bounds == rows
    for wrong in ({"8-1": 3}, [[1, 8, 3], [4, 9, 1]], [[1, 8]], {"1-8": -1}, "3"):
        with pytest.raises(ConfigError, match="num_speculative_tokens_per_batch_size: must be"):
            configure({**said, "num_speculative_tokens_per_batch_size": wrong})


def test_names_of_vllm_mean_the_same_method() -> None:
    assert configure({"method": "mimo_mtp"}) == configure({"method": "mtp", "num_speculative_tokens": 1})
    said = {"model": "x", "parallel_drafting": True}
    assert configure({"method": "eagle3", **said}) == configure({"method": "peagle", **said})
    with pytest.raises(ConfigError, match="parallel_drafting: only eagle3 and peagle read it"):
        configure({"method": "draft_model", "num_speculative_tokens": 3, **said})
    with pytest.raises(ConfigError, match=r"must be one of .*, mtp, .*not 'other_mtp'"):
        configure({"method": "other_mtp"})
