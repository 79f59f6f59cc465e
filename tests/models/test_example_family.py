"""The example of a family outside the repository: installed as a package of its own, found, equal to transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from installed import installed
from zoo import SMALL, load_reference, make_tokenizer, spread

EXAMPLE = Path(__file__).parents[2] / "examples" / "family"
MOST_LINES = 80
HELIUM = {"head_dim": 12, "attention_bias": True}
SCRIPT = """
import json, sys
from thalweg import LLM, SamplingParams
prompts = [[5, 6, 7, 8, 9], [200, 3], list(range(40, 70))]
llm = LLM(sys.argv[1], device="cpu", dtype="float32", max_model_len=64, max_num_seqs=2, use_tqdm_on_load=False)
outs = llm.generate([{"prompt_token_ids": p} for p in prompts], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
print(json.dumps([[p, list(o.outputs[0].token_ids)] for p, o in zip(prompts, outs)]))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return installed(EXAMPLE, tmp_path_factory.mktemp("family"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = transformers.HeliumConfig(**{**SMALL, **HELIUM})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    spread(model, 7)
    path = tmp_path_factory.mktemp("helium")
    model.save_pretrained(path)
    make_tokenizer(path)
    return path


def test_it_is_small_enough_to_read() -> None:
    assert sum(len(p.read_text().splitlines()) for p in EXAMPLE.rglob("thalweg_family/*.py")) < MOST_LINES


@torch.inference_mode()
@pytest.mark.slow
def test_it_answers_as_transformers_does(environment: dict[str, str], checkpoint: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(checkpoint)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    oracle = load_reference(checkpoint, torch.float32)
    for prompt, got in json.loads(done.stdout.strip().splitlines()[-1]):
        ids = list(prompt)
        for _ in got:
            ids.append(int(oracle(torch.tensor([ids])).logits[0, -1].argmax()))
        assert got == ids[len(prompt) :]


@pytest.mark.slow
def test_without_it_the_architecture_is_refused(checkpoint: Path) -> None:
    command = [sys.executable, "-m", "thalweg", "plan", str(checkpoint), "--device", "cpu", "--model-impl", "thalweg"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode
    assert "'HeliumForCausalLM' is not supported" in done.stderr


@pytest.mark.slow
def test_plan_follows_from_its_spec(environment: dict[str, str], checkpoint: Path) -> None:
    command = [sys.executable, "-m", "thalweg", "plan", str(checkpoint), "--device", "cpu", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["weights"] > 0
