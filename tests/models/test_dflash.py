"""DFlash in the target's steps: its drafts are those of transformers' module, and no text depends on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from draft_rounds import record_rounds
from safetensors.torch import load_file, save_file
from test_draft_model import HOST
from test_eagle import SETTINGS, SIZE, Target
from test_mtp import PROMPTS, serve, texts
from torch import Tensor
from transformers.models.muse_glimmer_assistant.modeling_muse_glimmer_assistant import MuseGlimmerAssistantModel
from zoo import VOCAB, spread

from thalweg import SamplingParams
from thalweg.config import EngineArgs
from thalweg.engine.control.speculation.gain import Gain
from thalweg.engine.planning.memory import plan
from thalweg.errors import ThalwegError
from thalweg.models.dflash import DFlashProposer
from thalweg.models.dspark import DSparkProposer
from thalweg.models.proposer import KEY

BLOCK, MASK, OFTEN = 4, VOCAB - 1, 17
WINDOW, RANK = 6, 8
AFTER = [0, 2]


class Pair:
    """A target that often says one token, and an assistant with that habit."""

    def __init__(self, path: Path) -> None:
        self.path, self.target = path, Target()
        model = self.target.model
        shared = torch.randn(SIZE)
        model.model.embed_tokens.weight.add_(2 * model.model.embed_tokens.weight.std() * shared)
        model.lm_head.weight[OFTEN] = shared * model.lm_head.weight.std() * 0.58
        settings = {k: v for k, v in SETTINGS.items() if k not in ("num_hidden_layers", "head_dim")}
        config = transformers.MuseGlimmerAssistantConfig(
            **settings, num_hidden_layers=2, head_dim=16, block_size=BLOCK, mask_token_id=MASK, target_layer_ids=AFTER,
            pad_token_id=None,
            layer_types=["sliding_attention", "full_attention"], sliding_window=WINDOW,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            attn_implementation="eager",
        )  # fmt: skip
        self.assistant = MuseGlimmerAssistantModel(config).float().eval().requires_grad_(False)
        spread(self.assistant, 9)
        for name, p in self.assistant.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                p.mul_(0.3)
        self.assistant.norm.weight.copy_(model.model.norm.weight)
        (path / "target").mkdir(parents=True)
        self.target.save(path / "target")
        self.save(path / "transformers", {**config.to_dict(), "architectures": ["MuseGlimmerAssistantModel"]})

    def save(self, path: Path, config: dict[str, Any], **renamed: str) -> Path:
        path.mkdir()
        tensors = {n: t.contiguous() for n, t in self.assistant.state_dict().items()}
        for old, new in renamed.items():
            tensors = {n.replace(old.replace("__", "."), new): t for n, t in tensors.items()}
        save_file(tensors, path / "model.safetensors")
        (path / "config.json").write_text(json.dumps(config))
        return path

    def save_dspark(self, kind: str, from_newest: bool) -> Path:
        """The same layers in the form of `speculators`, with a head of this kind."""
        path, r = self.path / f"{kind}-{from_newest}", RANK
        if path.exists():
            return path
        rows = {"vanilla": 0, "gated": r, "rnn": 3 * r}[kind]
        sizes = {"markov_w1.weight": (VOCAB, r), "markov_w2.weight": (VOCAB, r)}
        if rows:
            name = "gate_proj" if kind == "gated" else "joint_proj"
            sizes |= {f"{name}.weight": (rows, SIZE + (r if kind == "gated" else 2 * r)), f"{name}.bias": (rows,)}
        torch.manual_seed(11)
        head = {f"markov_head.{n}": torch.randn(size) for n, size in sizes.items()}
        head |= {"confidence_head.proj.weight": torch.randn(1, SIZE + r), "confidence_head.proj.bias": torch.randn(1)}
        said = json.loads((self.path / "transformers" / "config.json").read_text())
        layers = {k: said[k] for k in said if k not in ("target_layer_ids", "architectures")} | {"model_type": "qwen3"}
        config = {
            "speculators_model_type": "dspark", "architectures": ["DSparkSpeculator"], "transformer_layer_config": layers,
            "block_size": BLOCK, "mask_token_id": MASK, "aux_hidden_state_layer_ids": [i + 1 for i in AFTER],
            "draft_vocab_size": VOCAB, "markov_rank": r, "markov_head_type": kind, "sample_from_anchor": from_newest,
            "sliding_window_non_causal": True,
        }  # fmt: skip
        self.save(path, config)
        save_file(load_file(path / "model.safetensors") | head, path / "model.safetensors")
        return path

    def chained(self, path: Path, known: list[int]) -> tuple[list[int], Tensor]:
        """As `drafts`, of DSpark: by the formulas of the package `speculators` for one block."""
        config = json.loads((path / "config.json").read_text())
        head = {n.removeprefix("markov_head."): t for n, t in load_file(path / "model.safetensors").items() if "markov" in n}
        kind, first, state = config["markov_head_type"], 0 if config["sample_from_anchor"] else 1, torch.zeros(RANK)
        hidden, token, found = self._block(known), known[-1], list[Tensor]()
        for at, h in enumerate(hidden):
            e = head["markov_w1.weight"][token]
            if kind == "gated":
                e = torch.sigmoid(head["gate_proj.weight"] @ torch.cat([h, e]) + head["gate_proj.bias"]) * e
            elif kind == "rnn":
                mixed = head["joint_proj.weight"] @ torch.cat([state, e, h]) + head["joint_proj.bias"]
                gate, candidate, out = mixed.chunk(3)
                state = torch.sigmoid(gate) * state + (1 - torch.sigmoid(gate)) * torch.tanh(candidate)
                e = torch.tanh(out)
            if at >= first:
                found.append(self.target.model.lm_head(h) + head["markov_w2.weight"] @ e)
                token = int(found[-1].argmax())
        logits = torch.stack(found)
        return logits.argmax(-1).tolist(), logits.log_softmax(-1)

    def drafts(self, known: list[int]) -> tuple[list[int], Tensor]:
        """After the newest of these tokens, with the log-probabilities [BLOCK - 1, vocab] of each."""
        logits = self.target.model.lm_head(self._block(known)[1:])
        return logits.argmax(-1).tolist(), logits.log_softmax(-1)

    def _block(self, known: list[int]) -> Tensor:
        """The layers' outputs [BLOCK, hidden] for the newest token and masks."""
        model = self.target.model
        states = model(torch.tensor([known[:-1]]), output_hidden_states=True).hidden_states
        context = torch.cat([states[i + 1] for i in AFTER], -1)
        block = model.model.embed_tokens(torch.tensor([[known[-1], *[MASK] * (BLOCK - 1)]]))
        places = torch.arange(len(known) - 1 + BLOCK)[None]
        far = (places[0, -BLOCK:, None] - places) > WINDOW  # the module makes this mask for a cache only
        masks = {"full_attention": None, "sliding_attention": torch.zeros(far.shape).masked_fill(far, -torch.inf)[None, None]}
        found: Tensor = self.assistant(
            noise_embeds=block, context_hidden_states=context, position_ids=places, attention_mask=masks
        ).last_hidden_state
        return found[0]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gain, "allows", lambda self, streams: True)  # whatever this machine's clock says


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    torch.manual_seed(5)
    return Pair(tmp_path_factory.mktemp("dflash") / "models")


def config(pair: Pair, **more: Any) -> dict[str, Any]:
    return {"method": "dflash", "model": str(pair.path / "transformers"), "num_speculative_tokens": BLOCK - 1, **more}


@pytest.mark.parametrize("device", ["cpu", pytest.param(HOST, marks=pytest.mark.slow)])
def test_drafts_are_those_of_transformers(pair: Pair, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round by round, of prompts in chunks and with prefix hits, after accepted, rejected and partly accepted drafts."""
    seen = record_rounds(monkeypatch)
    found: list[tuple[int, Tensor]] = []
    choose = DFlashProposer._choose

    def record(self: Any, params: Any, x: Tensor, batch: Any, position: Tensor) -> Tensor:
        assert params[KEY] is not None
        for at, row in zip(position.tolist(), self._head.logits(params, x).log_softmax(-1), strict=True):
            found.append((at, row))
        return choose(self, params, x, batch, position)

    monkeypatch.setattr(DFlashProposer, "_choose", record)
    llm = serve(pair.path / "target", config(pair), max_num_batched_tokens=24, enforce_eager=True, device=device)
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    for _ in range(2):
        llm.generate([{"prompt_token_ids": p} for p in PROMPTS], params, use_tqdm=False)
    stats = llm.stats()
    llm.shutdown()
    assert stats.prefix_hits
    assert stats.draft_tokens > stats.accepted_tokens > stats.accepted_per_position[0] > 5
    right = 0
    for known, drafts in seen:
        tokens, wanted = pair.drafts(known)
        right += tokens == drafts
        near = [row for at, row in found if at == len(known) - 1]
        assert min(float((row - wanted[0]).abs().max()) for row in near) < 1e-4
    assert right >= 0.99 * len(seen)
    assert len(seen) > 30


@pytest.mark.parametrize(("kind", "from_newest"), [("rnn", False), ("gated", True), ("vanilla", True)])
@pytest.mark.sampled(1)
def test_drafts_of_dspark_are_those_of_the_published_formula(
    pair: Pair, kind: str, from_newest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one sequence: the log-probabilities of each draft, which depend on the draft before it."""
    found: list[tuple[int, Tensor]] = []
    draw = DSparkProposer._draw

    def record(self: Any, logits: Tensor, batch: Any, position: Tensor) -> Tensor:
        found.append((int(position[0]), logits[0].log_softmax(-1).clone()))
        return draw(self, logits, batch, position)

    monkeypatch.setattr(DSparkProposer, "_draw", record)
    path, most = pair.save_dspark(kind, from_newest), BLOCK if from_newest else BLOCK - 1
    llm = serve(pair.path / "target", {"model": str(path), "num_speculative_tokens": most}, max_num_seqs=1, enforce_eager=True)
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    out = llm.generate([{"prompt_token_ids": PROMPTS[0]}], params, use_tqdm=False)[0].outputs[0]
    llm.shutdown()
    ids, rounds = [*PROMPTS[0], *out.token_ids], 0
    for first in range(0, len(found), most):
        known = ids[: found[first][0] + 1]
        if len(known) > len(PROMPTS[0]):
            rows = torch.stack([x for _, x in found[first : first + most]])
            torch.testing.assert_close(rows, pair.chained(path, known)[1], atol=1e-4, rtol=0)
            rounds += 1
    assert rounds > 5


@pytest.mark.nightly
@pytest.mark.parametrize("more", [{}, {"device": HOST}, {"tensor_parallel_size": 2}])
def test_text_is_the_same_with_dspark(pair: Pair, more: dict[str, Any]) -> None:
    tight = {"num_gpu_blocks_override": 14, "max_num_batched_tokens": 24, **more}
    drafter = {"model": str(pair.save_dspark("rnn", False)), "num_speculative_tokens": BLOCK - 1}
    without, _ = texts(pair.path / "target", None, **tight)
    with_drafts, stats = texts(pair.path / "target", drafter, **tight)
    assert with_drafts == without
    assert stats.preemptions
    assert stats.draft_tokens


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [{}, *(pytest.param(each, marks=pytest.mark.nightly) for each in ({"tensor_parallel_size": 2}, {"device": HOST}))]
)
def test_text_is_the_same_with_dflash(pair: Pair, more: dict[str, Any]) -> None:
    """Sequences give way to others, prompts come in chunks next to drafts, and prefixes are found."""
    tight = {"num_gpu_blocks_override": 14, "max_num_batched_tokens": 24, **more}
    without, _ = texts(pair.path / "target", None, **tight)
    with_drafts, stats = texts(pair.path / "target", config(pair), **tight)
    assert with_drafts == without
    assert stats.preemptions
    assert stats.draft_tokens > stats.accepted_tokens > 10


def test_the_plan_counts_the_layers(pair: Pair) -> None:
    args: dict[str, Any] = {"model": str(pair.path / "target"), "device": "cpu", "max_model_len": 96, "dtype": "float32"}
    alone, both = plan(EngineArgs(**args)), plan(EngineArgs(**args, speculative_config=config(pair)))
    held = sum(t.numel() * 4 for t in load_file(pair.path / "transformers" / "model.safetensors").values())
    assert both.weights == alone.weights + held + 96 * 16 * 4  # and a rotary table


def test_checkpoints_that_cannot_be_served_are_refused_in_words(pair: Pair, tmp_path: Path) -> None:
    good = json.loads((pair.path / "transformers" / "config.json").read_text())
    for i, (changes, words) in enumerate((
        ({"target_layer_ids": [0, 4]}, "target_layer_ids: must be different layers of the target, from 0 to 3"),
        ({"mask_token_id": VOCAB}, f"mask_token_id: {VOCAB} is no token of the target's"),
        ({"hidden_size": 64}, "hidden_size is 64, and the target's hidden size is 48"),
    )):  # fmt: skip
        path = pair.save(tmp_path / str(i), {**good, **changes})
        with pytest.raises(ThalwegError, match=words):
            serve(pair.path / "target", config(pair, model=str(path)))
    with pytest.raises(ThalwegError, match="num_speculative_tokens: 4 is more than the 3 of the drafter's blocks"):
        serve(pair.path / "target", config(pair, num_speculative_tokens=BLOCK))
