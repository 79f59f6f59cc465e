"""A module for multi-token prediction that reads the cache of one of its target's layers.

Its drafts are those of a layer of transformers over the target's own keys and values. No text depends on them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from draft_rounds import record_rounds
from safetensors.torch import load_file, save_file
from test_draft_model import HOST, KINDS
from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm
from zoo import SMALL, make_tokenizer, spread

from thalweg import LLM, SamplingParams
from thalweg.config import EngineArgs
from thalweg.engine.control.speculation.gain import Gain
from thalweg.engine.planning.memory import plan
from thalweg.errors import ThalwegError

MOST, LAYER = 3, 1
DRAFT = {"method": "mtp", "num_speculative_tokens": MOST}
PROMPTS = [[5, 6, 7, 8, 5, 6, 7, 8, 5], [11, 3, 99], list(range(40, 73)), [200, 7]]


class Published(nn.Module):
    """A Qwen3 of transformers, and one more of its layers, which continues the cache of layer LAYER. Many drafts are right."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {**SMALL, "num_hidden_layers": 3, "head_dim": 16}
        self.settings = transformers.Qwen3Config(**sizes, attn_implementation="eager")
        self.target = transformers.AutoModelForCausalLM.from_config(self.settings, dtype=torch.float32)
        size = self.settings.hidden_size
        self.layer = Qwen3DecoderLayer(self.settings, LAYER)
        self.enorm, self.hnorm, self.norm = (Qwen3RMSNorm(size, self.settings.rms_norm_eps) for _ in range(3))
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        self.eval().requires_grad_(False)
        spread(self, 4)
        for name, p in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                p.mul_(0.5 if name.startswith("layer.") else 0.05)
        token, hidden = self.eh_proj.weight.split(size, 1)
        hidden *= 0.15
        token.copy_(torch.eye(size))
        self.norm.weight.copy_(self.target.model.norm.weight)

    def save(self, path: Path) -> None:
        self.target.save_pretrained(path)
        at = f"model.layers.{self.settings.num_hidden_layers}."
        tensors = {f"{at}{n}": t for n, t in self.layer.state_dict().items()}
        for name, part in (("enorm", self.enorm), ("hnorm", self.hnorm), ("shared_head.norm", self.norm)):
            tensors[f"{at}{name}.weight"] = part.weight
        (path / "mtp").mkdir()
        save_file({**tensors, f"{at}eh_proj.weight": self.eh_proj.weight}, path / "mtp" / "model.safetensors")
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, "mtp_folder": "mtp", "mtp_cache_layer": LAYER}))
        make_tokenizer(path)

    def drafts(self, known: list[int], count: int) -> list[int]:
        """After the newest of these tokens."""
        model = self.target.model
        ran = model(torch.tensor([known[:-1]]), use_cache=True)
        hidden, cache, tokens = ran.last_hidden_state[0, -1], ran.past_key_values, list(known)
        for _ in range(count):
            hidden = self._run(hidden, tokens[-1], len(tokens) - 1, cache)
            tokens.append(int((self.target.lm_head.weight @ hidden).argmax()))
        return tokens[len(known) :]

    def _run(self, hidden: Tensor, token: int, at: int, cache: Any) -> Tensor:
        model = self.target.model
        embedded = self.enorm(model.embed_tokens(torch.tensor([token])))
        x = self.eh_proj(torch.cat((embedded, self.hnorm(hidden[None])), -1))[None]
        turns = model.rotary_emb(x, torch.tensor([[at]]))
        x = self.layer(x, attention_mask=None, past_key_values=cache, position_embeddings=turns, use_cache=True)
        return self.norm(x[0] if isinstance(x, tuple) else x).flatten()


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gain, "allows", lambda self, streams: True)  # whatever this machine's clock says


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Published, Path]:
    model, path = Published(), tmp_path_factory.mktemp("reader") / "model"
    path.mkdir()
    model.save(path)
    return model, path


def serve(path: Path, drafts: Any, **args: Any) -> LLM:
    sizes = {"max_model_len": 96, "max_num_seqs": 4, "dtype": "float32", "block_size": 8, "device": "cpu"}
    return LLM(str(path), seed=0, speculative_config=drafts, use_tqdm_on_load=False, **{**sizes, **args})


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param(HOST, marks=pytest.mark.nightly)])
def test_drafts_are_those_of_a_layer_over_the_targets_cache(
    made: tuple[Published, Path], device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Round by round, of prompts in chunks and with prefix hits, after accepted, rejected and partly accepted drafts, and after
    steps that proposed none."""
    seen, turn = record_rounds(monkeypatch), iter(range(1 << 20))
    monkeypatch.setattr(Gain, "allows", lambda self, streams: next(turn) % 5 > 0)
    model, path = made
    llm = serve(path, DRAFT, max_num_batched_tokens=24, device=device)
    params = SamplingParams(max_tokens=32, temperature=0, ignore_eos=True)
    for _ in range(2):
        llm.generate([{"prompt_token_ids": p} for p in PROMPTS], params, use_tqdm=False)
    stats = llm.stats()
    llm.shutdown()
    assert stats.prefix_hits
    assert "without a graph" not in caplog.text
    rounds = seen[::3]
    right = sum(model.drafts(known, len(drafts)) == drafts for known, drafts in rounds)
    assert stats.draft_tokens > stats.accepted_tokens > stats.accepted_per_position[0] > 10
    assert right >= 0.99 * len(rounds)
    assert len(rounds) > 20


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
    "more",
    [
        {},
        pytest.param({"device": HOST}, marks=pytest.mark.nightly),  # its block tables have entries of others
        pytest.param({"tensor_parallel_size": 2}, marks=pytest.mark.nightly),
        pytest.param({"kv_cache_dtype": "fp8"}, marks=pytest.mark.nightly),
    ],
)
def test_text_is_the_same_though_the_module_writes_to_the_targets_cache(
    more: dict[str, Any], made: tuple[Published, Path]
) -> None:
    """Sequences give way to others, prompts come in chunks next to drafts, and prefixes are found."""
    tight, path = {"num_gpu_blocks_override": 14, "max_num_batched_tokens": 24, **more}, made[1]
    without, _ = texts(path, None, **tight)
    with_drafts, stats = texts(path, DRAFT, **tight)
    assert with_drafts == without
    assert stats.preemptions
    assert stats.draft_tokens > stats.accepted_tokens > 10


def test_the_plan_counts_the_modules_weights_and_no_cache(made: tuple[Published, Path]) -> None:
    args: dict[str, Any] = {"model": str(made[1]), "device": "cpu", "max_model_len": 96, "dtype": "float32"}
    target, both = plan(EngineArgs(**args)), plan(EngineArgs(**args, speculative_config=DRAFT))
    held = sum(t.numel() * 4 for t in load_file(made[1] / "mtp" / "model.safetensors").values())
    assert both.weights == target.weights + held + 96 * 16 * 4
    assert both.kv_per_token == target.kv_per_token


def test_a_layer_that_the_target_lacks_is_refused(made: tuple[Published, Path]) -> None:
    with pytest.raises(ThalwegError, match=r"mtp_cache_layer.*3"):
        serve(made[1], DRAFT, hf_overrides={"mtp_cache_layer": 3})
