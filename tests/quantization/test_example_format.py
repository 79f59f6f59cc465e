"""The example of a format outside the repository: installed as a package of its own, found, equal to dense weights."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from installed import installed
from safetensors.torch import load_file, save_file
from zoo import SMALL, edit_config, load_reference, make_tokenizer, spread

EXAMPLE = Path(__file__).parents[2] / "examples" / "format"
MOST_LINES = 80
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
    return installed(EXAMPLE, tmp_path_factory.mktemp("format"))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same rounded weights twice: in blocks by the gguf definition of Q8_0 written in numpy, and dense."""
    import transformers

    folder = tmp_path_factory.mktemp("q8")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "tie_word_embeddings": True}
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**{**SMALL, **sizes}), dtype=torch.float32)
    spread(model, 3)
    dense, blocks = folder / "dense", folder / "blocks"
    model.save_pretrained(dense)
    shutil.copytree(dense, blocks)
    tensors, held = load_file(dense / "model.safetensors"), {}
    for name, t in list(tensors.items()):
        if not name.endswith("_proj.weight"):
            held[name] = t
            continue
        x = t.numpy().reshape(t.shape[0], -1, 32)
        d = (np.abs(x).max(-1, keepdims=True) / 127).astype(np.float16)
        q = np.round(x / np.where(d == 0, 1, d).astype(np.float32)).clip(-128, 127).astype(np.int8)
        raw = np.concatenate([d.view(np.uint8).reshape(*d.shape[:2], 2), q.view(np.uint8)], -1)
        held[name + "_blocks"] = torch.from_numpy(raw.reshape(len(raw), -1))
        tensors[name] = torch.from_numpy((q.astype(np.float32) * d.astype(np.float32)).reshape(t.shape))
    save_file(held, blocks / "model.safetensors", {"format": "pt"})
    save_file(tensors, dense / "model.safetensors", {"format": "pt"})
    edit_config(blocks, quantization_config={"quant_method": "q8-blocks"})
    make_tokenizer(blocks)
    return blocks, dense


def test_it_is_small_enough_to_read() -> None:
    assert sum(len(p.read_text().splitlines()) for p in EXAMPLE.rglob("thalweg_format/*.py")) < MOST_LINES


@torch.inference_mode()
@pytest.mark.slow
def test_it_answers_as_transformers_does_with_dense_weights(environment, checkpoints) -> None:
    blocks, dense = checkpoints
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(blocks)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    oracle = load_reference(dense, torch.float32)
    for prompt, got in json.loads(done.stdout.strip().splitlines()[-1]):
        ids = list(prompt)
        for _ in got:
            ids.append(int(oracle(torch.tensor([ids])).logits[0, -1].argmax()))
        assert got == ids[len(prompt) :]


@pytest.mark.slow
def test_without_it_the_checkpoint_is_refused(checkpoints) -> None:
    command = [sys.executable, "-m", "thalweg", "plan", str(checkpoints[0]), "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode
    assert "quantised checkpoints (q8-blocks) are not read by this version, which reads auto" in done.stderr
