"""EAGLE's drafters in the target's steps: their drafts are those of the published formula, and no text depends on them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from draft_rounds import record_rounds
from safetensors.torch import load_file, save_file
from test_draft_model import HOST
from test_mtp import PROMPTS, serve, texts
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm
from zoo import SMALL, VOCAB, make_tokenizer, spread

from thalweg import SamplingParams
from thalweg.config import EngineArgs
from thalweg.drafters import configure
from thalweg.engine.control.slots import Slots
from thalweg.engine.control.speculation.eagle3 import Eagle3Drafter
from thalweg.engine.control.speculation.gain import Gain
from thalweg.engine.control.speculation.watch import ROUNDS
from thalweg.engine.planning.drafter_files import resolve_drafter
from thalweg.engine.planning.memory import plan
from thalweg.errors import ThalwegError
from thalweg.models.eagle3 import EagleProposer
from thalweg.models.proposer import KEY

MOST = 3
TAPS = [1, 2, 3]
SIZE: int = SMALL["hidden_size"]
SETTINGS: dict[str, Any] = {**SMALL, "num_hidden_layers": 4, "num_key_value_heads": 4}


@dataclass(frozen=True)
class Form:
    """A checkpoint of EAGLE-3."""

    speculators: bool = False
    """In the form of that package."""
    vocab: int = VOCAB
    layers: int = 1
    flags: tuple[str, ...] = ()
    """Of `norm_before_residual`, `norm_before_fc`, `fc_norm`, `norm_output`."""
    nested: bool = False
    """The places are in `eagle_config`."""
    embedded: bool = False
    mask: int | None = None
    """Of P-EAGLE."""
    window: int = 0
    """Of layers after the first."""

    @property
    def method(self) -> str:
        return "eagle3" if self.mask is None else "peagle"


FORMS = {
    "authors": Form(vocab=160),
    "speculators": Form(True, 200, 2, ("norm_before_residual", "fc_norm"), embedded=True),
    "eagle-3.1": Form(vocab=VOCAB, flags=("norm_before_fc", "norm_output"), nested=True),
    "p-eagle": Form(True, 200, 2, ("norm_before_residual", "norm_before_fc"), embedded=True, mask=VOCAB - 2, window=6),
}


class Target(nn.Module):
    """Tiny. Its next token mostly depends on the newest one."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = transformers.LlamaConfig(**SETTINGS, attn_implementation="eager")
        self.model = transformers.LlamaForCausalLM(self.settings).float()
        self.eval().requires_grad_(False)
        spread(self, 4)
        for name, p in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                p.mul_(0.05)

    def save(self, path: Path) -> None:
        save_file({n: t.contiguous() for n, t in self.model.state_dict().items()}, path / "model.safetensors")
        (path / "config.json").write_text(json.dumps({**self.settings.to_dict(), "architectures": ["LlamaForCausalLM"]}))
        make_tokenizer(path)

    def states(self, known: list[int], places: list[int]) -> list[Tensor]:
        """Before these layers, of all tokens but the newest."""
        found = self.model(torch.tensor([known[:-1]]), output_hidden_states=True).hidden_states
        return [found[i][0] for i in places]


class Eagle3(nn.Module):
    """The published computation. Many of its drafts are right: the first layer copies the token's embedding."""

    def __init__(self, target: Target, form: Form) -> None:
        super().__init__()
        self.target, self.form = [target], form
        settings = transformers.LlamaConfig(**{**SETTINGS, "num_hidden_layers": form.layers}, attn_implementation="eager")
        self.layers = nn.ModuleList(LlamaDecoderLayer(settings, i) for i in range(form.layers))
        first: Any = self.layers[0]
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(first.self_attn, name, nn.Linear(2 * SIZE, SIZE, bias=False))
        first.hidden_norm = LlamaRMSNorm(SIZE, 1e-5)
        self.fc, self.norm = nn.Linear(3 * SIZE, SIZE, bias=False), LlamaRMSNorm(SIZE, 1e-5)
        self.lm_head = nn.Linear(SIZE, form.vocab, bias=False)
        if "norm_before_fc" in form.flags:
            self.input_norm = LlamaRMSNorm(3 * SIZE, 1e-5)
        if "fc_norm" in form.flags:
            self.fc_norm = nn.ModuleList(LlamaRMSNorm(SIZE, 1e-5) for _ in TAPS)
        if form.mask is not None:
            self.mask_hidden = nn.Parameter(torch.randn(1, 1, 3 * SIZE))
        self.eval().requires_grad_(False)
        spread(self, 7)
        for name, p in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                p.mul_(0.05)
        first.hidden_norm.weight.mul_(0.2)
        self.fc.weight.mul_(0.2)
        wide = torch.cat([torch.eye(SIZE), 0.05 * torch.randn(SIZE, SIZE)], 1)
        first.input_layernorm.weight.fill_(1)
        first.self_attn.q_proj.weight.copy_(2 * wide)
        first.self_attn.k_proj.weight.copy_(2 * wide)
        first.self_attn.v_proj.weight.copy_(wide)
        first.self_attn.o_proj.weight.copy_(torch.eye(SIZE))
        self.tokens = torch.arange(form.vocab) if form.vocab == VOCAB else torch.randperm(VOCAB)[: form.vocab].sort().values
        self.lm_head.weight.copy_(target.model.lm_head.weight[self.tokens])
        self.norm.weight.copy_(target.model.model.norm.weight)

    def save(self, path: Path) -> Path:
        path.mkdir()
        form = self.form
        tensors = {n: t.contiguous() for n, t in self.state_dict().items()}
        if form.vocab != VOCAB:
            known = torch.zeros(VOCAB, dtype=torch.bool)
            known[self.tokens] = True
            tensors |= {"d2t": self.tokens - torch.arange(form.vocab), "t2d": known}
        if form.embedded:
            tensors["embed_tokens.weight"] = self.target[0].model.model.embed_tokens.weight.contiguous()
        if not form.speculators:
            tensors = {n.replace("layers.0.", "midlayer."): t for n, t in tensors.items()}
        save_file(tensors, path / "model.safetensors")
        layers = {**SETTINGS, "num_hidden_layers": form.layers, "model_type": "llama", "head_dim": SIZE // 4}
        own: dict[str, Any] = {"draft_vocab_size": form.vocab} | dict.fromkeys(form.flags, True)
        places = {"eagle_aux_hidden_state_layer_ids": TAPS}
        own |= {"eagle_config": places} if form.nested else places
        if form.speculators:
            verifier = {"name_or_path": str(path.parent / "target"), "architectures": ["LlamaForCausalLM"]}
            proposal = {"proposal_type": "greedy", "speculative_tokens": MOST}
            kind = {"algorithm": form.method, "proposal_methods": [proposal], "default_proposal_method": "greedy"}
            own |= {"transformer_layer_config": layers, "speculators_config": {**kind, "verifier": verifier}}
            own |= {"speculators_model_type": form.method, "architectures": ["Eagle3Speculator"]}
            if form.mask is not None:
                layers |= {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": form.window}
                own["mask_token_id"] = form.mask
        else:
            own |= {**layers, "architectures": ["LlamaForCausalLMEagle3"]}
        (path / "config.json").write_text(json.dumps(own))
        return path

    def drafts(self, known: list[int], count: int) -> tuple[list[int], Tensor]:
        """After the newest of these tokens, with the log-probabilities [count, vocab] of each over the target's tokens."""
        states = self.target[0].states(known, TAPS)
        if "fc_norm" in self.form.flags:
            states = [norm(x) for norm, x in zip(self.fc_norm, states, strict=True)]
        joined = torch.cat(states, -1)
        if self.form.mask is not None:
            return self._fill(known, joined, count)
        hidden = list(self.fc(self.input_norm(joined) if "norm_before_fc" in self.form.flags else joined))
        tokens, logits = list(known), []
        for _ in range(count):
            out = self._run(torch.stack(hidden), torch.tensor(tokens[1:]))[-1]
            normed = self.norm(out)
            logits.append(torch.full((VOCAB,), -torch.inf).index_copy(0, self.tokens, self.lm_head(normed)))
            tokens.append(int(logits[-1].argmax()))
            hidden.append(normed if "norm_output" in self.form.flags else out)
        return tokens[len(known) :], torch.stack(logits).log_softmax(-1)

    def _fill(self, known: list[int], joined: Tensor, count: int) -> tuple[list[int], Tensor]:
        """As `drafts`, with masks after the newest token."""
        masks = self.mask_hidden[0].expand(count - 1, -1)
        tokens = torch.tensor([*known[1:], *[self.form.mask] * (count - 1)])
        out = self._run(self.fc(self.input_norm(torch.cat([joined, masks]))), tokens)[-count:]
        logits = torch.full((count, VOCAB), -torch.inf).index_copy(1, self.tokens, self.lm_head(self.norm(out)))
        return logits.argmax(-1).tolist(), logits.log_softmax(-1)

    def _run(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        model, n = self.target[0].model.model, len(tokens)
        mask = torch.full((1, 1, n, n), -torch.inf).triu(1)
        turned = model.rotary_emb(hidden[None], torch.arange(n)[None])
        for i, layer in enumerate(self.layers):
            if i:
                if self.form.window:
                    mask = mask + torch.full((1, 1, n, n), -torch.inf).tril(-self.form.window)
                hidden = layer(hidden[None], attention_mask=mask, position_embeddings=turned)[0]
                continue
            normed = layer.hidden_norm(hidden)
            both = torch.cat([layer.input_layernorm(model.embed_tokens(tokens)), normed], -1)
            start = normed if "norm_before_residual" in self.form.flags else hidden
            x = start + layer.self_attn(both[None], position_embeddings=turned, attention_mask=mask)[0][0]
            hidden = x + layer.mlp(layer.post_attention_layernorm(x))
        return hidden


class Eagle1(nn.Module):
    """The published computation, of one layer."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = [target]
        settings = transformers.LlamaConfig(**{**SETTINGS, "num_hidden_layers": 1}, attn_implementation="eager")
        self.fc, self.layers = nn.Linear(2 * SIZE, SIZE), nn.ModuleList([LlamaDecoderLayer(settings, 0)])
        self.eval().requires_grad_(False)
        spread(self, 5)
        first: Any = self.layers[0]
        first.input_layernorm = nn.Identity()
        first.self_attn.o_proj.weight.mul_(0.1)
        first.mlp.down_proj.weight.mul_(0.1)
        self.fc.weight.copy_(torch.cat([torch.diag(target.model.model.norm.weight), 0.02 * torch.randn(SIZE, SIZE)], 1))

    def save(self, path: Path) -> Path:
        path.mkdir()
        tensors = {n: t.contiguous() for n, t in self.state_dict().items()}
        tensors["embed_tokens.weight"] = self.target[0].model.model.embed_tokens.weight.contiguous()
        save_file(tensors, path / "model.safetensors")
        config = {
            **SETTINGS,
            "num_hidden_layers": 1,
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "bias": True,
        }
        (path / "config.json").write_text(json.dumps(config))
        return path

    def drafts(self, known: list[int], count: int) -> tuple[list[int], Tensor]:
        """As of Eagle3."""
        model = self.target[0].model
        hidden, tokens = list(model.model(torch.tensor([known[:-1]])).last_hidden_state[0]), list(known)
        for _ in range(count):
            n = len(hidden)
            x = self.fc(torch.cat([model.model.embed_tokens(torch.tensor(tokens[1:])), torch.stack(hidden)], -1))[None]
            mask, turned = torch.full((1, 1, n, n), -torch.inf).triu(1), model.model.rotary_emb(x, torch.arange(n)[None])
            hidden.append(self.layers[0](x, attention_mask=mask, position_embeddings=turned)[0][-1])
            tokens.append(int(model.lm_head(hidden[-1]).argmax()))
        return tokens[len(known) :], model.lm_head(torch.stack(hidden[-count:])).log_softmax(-1)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gain, "allows", lambda self, streams: True)  # whatever this machine's clock says


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Target, Path]:
    path = tmp_path_factory.mktemp("eagle") / "target"
    path.mkdir()
    made = Target()
    made.save(path)
    return made, path


def make(target: tuple[Target, Path], name: str) -> tuple[Any, dict[str, Any]]:
    """The published computation, and the configuration that serves it."""
    torch.manual_seed(3)
    made: Any = Eagle3(target[0], FORMS[name]) if name in FORMS else Eagle1(target[0])
    path = target[1].parent / name
    if not path.exists():
        made.save(path)
    method = FORMS[name].method if name in FORMS else "eagle"
    return made, {"method": method, "model": str(path), "num_speculative_tokens": MOST}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["authors", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("eagle-1", "p-eagle"))]
)
def test_drafts_are_those_of_the_published_formula(
    target: tuple[Target, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round by round, of prompts in chunks and with prefix hits, after accepted, rejected and partly accepted drafts."""
    seen = record_rounds(monkeypatch)
    model, config = make(target, name)
    llm = serve(target[1], config, max_num_batched_tokens=24)
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    for _ in range(2):
        llm.generate([{"prompt_token_ids": p} for p in PROMPTS], params, use_tqdm=False)
    stats = llm.stats()
    llm.shutdown()
    assert stats.prefix_hits
    right = sum(model.drafts(known, MOST)[0] == drafts for known, drafts in seen)
    assert stats.draft_tokens > stats.accepted_tokens >= stats.accepted_per_position[0] > 5
    assert stats.accepted_tokens > stats.accepted_per_position[0] or name == "p-eagle"  # its masks are not trained
    assert right >= 0.99 * len(seen)
    assert len(seen) > 30


@pytest.mark.parametrize("name", ["authors", "p-eagle", "speculators", "eagle-3.1", "eagle-1"])
@pytest.mark.sampled(1)
def test_log_probabilities_of_drafts_are_those_of_the_published_formula(
    target: tuple[Target, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one sequence, after right and wrong drafts."""
    found: list[tuple[int, Tensor]] = []
    choose = EagleProposer._choose
    model, config = make(target, name)

    def record(self: Any, params: Any, x: Tensor, batch: Any, position: Tensor) -> Tensor:
        logits = self._head.logits(params[KEY] if self._spec.has_head else params, x)
        found.extend(zip(position.tolist(), logits.log_softmax(-1), strict=True))
        return choose(self, params, x, batch, position)

    monkeypatch.setattr(EagleProposer, "_choose", record)
    llm = serve(target[1], config, max_num_seqs=1, enforce_eager=True)
    params = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)
    out = llm.generate([{"prompt_token_ids": PROMPTS[0]}], params, use_tqdm=False)[0].outputs[0]
    llm.shutdown()
    ids, rounds = [*PROMPTS[0], *out.token_ids], 0
    for first in range(0, len(found), MOST):
        known = ids[: found[first][0] + 1]
        if len(known) > len(PROMPTS[0]):
            want = model.drafts(known, MOST)[1]
            torch.testing.assert_close(torch.stack([x for _, x in found[first : first + MOST]]), want, atol=1e-4, rtol=0)
            rounds += 1
    assert rounds > 5


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("authors", {}),
        ("eagle-1", {}),
        ("p-eagle", {}),
        ("authors", {"tensor_parallel_size": 2}),
        ("speculators", {"tensor_parallel_size": 2}),
        ("eagle-1", {"tensor_parallel_size": 2}),
        ("p-eagle", {"tensor_parallel_size": 2}),
        ("authors", {"device": HOST}),
        ("speculators", {"device": HOST}),
        ("eagle-1", {"device": HOST}),
        ("p-eagle", {"device": HOST}),
    ],
)
def test_text_is_the_same_with_eagle(target: tuple[Target, Path], name: str, more: dict[str, Any]) -> None:
    """Sequences give way to others, prompts come in chunks next to drafts, and prefixes are found."""
    tight = {"num_gpu_blocks_override": 14, "max_num_batched_tokens": 24, **more}
    without, _ = texts(target[1], None, **tight)
    with_drafts, stats = texts(target[1], make(target, name)[1], **tight)
    assert with_drafts == without
    assert stats.preemptions
    assert stats.draft_tokens > stats.accepted_tokens > 10


def test_the_plan_counts_the_layers(target: tuple[Target, Path]) -> None:
    config = make(target, "speculators")[1]
    args: dict[str, Any] = {"model": str(target[1]), "device": "cpu", "max_model_len": 96, "dtype": "float32"}
    alone, both = plan(EngineArgs(**args)), plan(EngineArgs(**args, speculative_config=config))
    tensors = load_file(Path(config["model"]) / "model.safetensors")
    unread = ("d2t", "t2d", "embed_tokens.weight")  # the last is a copy of the target's
    held = sum(t.numel() * 4 for n, t in tensors.items() if n not in unread)
    assert both.weights == alone.weights + held + 96 * (SIZE // 4) * 4  # and a rotary table
    assert both.kv_per_token == alone.kv_per_token * 6 // 4  # two layers, next to four


def test_checkpoints_that_cannot_be_served_are_refused_in_words(target: tuple[Target, Path], tmp_path: Path) -> None:
    _, config = make(target, "authors")
    good = json.loads((Path(config["model"]) / "config.json").read_text())
    tensors = load_file(Path(config["model"]) / "model.safetensors")
    for changes, lost, words in (
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 5]}, (), "must be different layers of the target, from 0 to 4"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 2, 3]}, (), "must be different layers of the target"),
        ({"target_hidden_size": 64}, (), "target_hidden_size is 64, and the target's hidden size is 48"),
        ({"quantization_config": {"quant_method": "vptq"}}, (), r"quantised checkpoints \(vptq\) are not read"),
        ({"speculators_model_type": "dspark", "transformer_layer_config": {}}, (), "a drafter of the method 'dspark'"),
        ({}, ("d2t",), "lacks d2t, which maps 160 draft tokens"),
        ({}, ("fc.weight",), "lacks fc.weight"),
    ):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        path.mkdir()
        (path / "config.json").write_text(json.dumps({**good, **changes}))
        save_file({n: t for n, t in tensors.items() if n not in lost}, path / "model.safetensors")
        with pytest.raises(ThalwegError, match=words):
            serve(target[1], {**config, "model": str(path)})
    with pytest.raises(ThalwegError, match="model: this method needs a directory or a hub id"):
        serve(target[1], {"method": "eagle3"})


def test_a_checkpoint_of_speculators_names_its_method_and_its_target(target: tuple[Target, Path]) -> None:
    _, config = make(target, "speculators")
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    for model, said in ((str(target[1]), {"model": config["model"]}), (config["model"], None)):
        llm = serve(Path(model), said)
        llm.generate([{"prompt_token_ids": PROMPTS[0]}], params, use_tqdm=False)
        stats = llm.stats()
        llm.shutdown()
        assert stats.drafts
        assert len(stats.accepted_per_position) == MOST
    with pytest.raises(ThalwegError, match=r"holds a drafter\. Give the model that it was trained for"):
        serve(Path(config["model"]), {"method": "suffix"})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (3, "speculators_config: must be an object"),
        ({"verifier": [1]}, "verifier: must be an object"),
        ({"proposal_methods": 3}, "proposal_methods: must be a list"),
        ({}, r"holds a drafter\. Give the model that it was trained for"),  # it names itself
    ],
)
def test_a_checkpoint_of_speculators_with_wrong_settings_is_refused(
    target: tuple[Target, Path], tmp_path: Path, settings: Any, words: str
) -> None:
    if isinstance(settings, dict):
        verifier = {"name_or_path": str(target[1] if settings else tmp_path)}
        settings = {"verifier": verifier, "default_proposal_method": "greedy", **settings}
    content = {"speculators_model_type": "eagle3", "speculators_config": settings}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ThalwegError, match=words):
        serve(tmp_path, None)


def test_checkpoints_of_other_forms_are_recognised(target: tuple[Target, Path]) -> None:
    args: dict[str, Any] = {"model": str(target[1]), "device": "cpu", "max_model_len": 96, "dtype": "float32"}
    _, config = make(target, "authors")
    assert resolve_drafter(EngineArgs(**args, speculative_config={"model": config["model"]})).speculative_config == {
        "method": "eagle3",
        "model": config["model"],
    }
    assert resolve_drafter(EngineArgs(**args, spec_model="thalweg-nano-draft")).speculative_config["method"] == "draft_model"


def test_fields_of_vllm_without_an_effect_are_accepted() -> None:
    same = {"method": "ngram_gpu", "num_speculative_tokens": 2, "rejection_sample_method": "block", "enforce_eager": True}
    more = {"draft_tensor_parallel_size": 1, "disable_padded_drafter_batch": True, "quantization": None}
    assert configure({**same, **more}) == configure({"method": "ngram", "num_speculative_tokens": 2})


@pytest.mark.parametrize(("right", "warns"), [(40, True), (120, False)])
def test_drafts_that_are_rarely_right_are_reported_once(right: int, warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The only symptom of a wrong layer."""
    config = configure({"method": "eagle3", "model": "org/name"})
    drafter, slots = Eagle3Drafter(config, Slots(4, 96)), np.arange(1, 5, dtype=np.int32)
    for i in range(2 * ROUNDS // 4):
        drafter.learn(slots, np.full(4, int(i < right // 4), np.int32))
    said = [r.getMessage() for r in caplog.records if "first drafts were right" in r.getMessage()]
    assert len(said) == warns
    assert not warns or "eagle3: 16 % of the first drafts were right in the first 256 rounds" in said[0]
