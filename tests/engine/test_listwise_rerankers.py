"""jina-reranker-v3: all documents of a query in one prompt, as its authors write it, and cosines of projected states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from zoo import edit_config, load_reference, make_causal

from thalweg import LLM
from thalweg.errors import RequestError

MARKS = ("<|embed_token|>", "<|rerank_token|>")
SYSTEM = (
    "You are a search relevance expert who can determine a ranking of the passages based on how relevant they are "
    "to the query. If the query is a question, how relevant a passage is depends on how well it answers the "
    "question. If not, try to analyze the intent of the query and assess how well each passage satisfies the "
    "intent. If an instruction is provided, you should follow the instruction when determining the ranking."
)


def written(query: str, documents: list[str]) -> str:
    passages = "\n".join(f'<passage id="{i}">\n{d}<|embed_token|>\n</passage>' for i, d in enumerate(documents))
    return (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\nI will provide you with {len(documents)} passages, each "
        f"indicated by a numerical identifier. Rank the passages based on their relevance to query: {query}\n{passages}\n"
        f"<query>\n{query}<|rerank_token|>\n</query><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def make_ranker(directory: Path) -> tuple[Path, Any, tuple[torch.Tensor, torch.Tensor]]:
    """The model, its backbone in transformers, and its projection."""
    path = make_causal("qwen3", directory, head_dim=16, max_position_embeddings=2048)
    model = load_reference(path, torch.float32)
    generator = torch.Generator().manual_seed(3)
    first, second = (torch.randn(shape, generator=generator) / 5 for shape in ((24, 48), (512, 24)))
    (file,) = path.glob("*.safetensors")
    held = {k: v for k, v in load_file(file).items() if not k.startswith("lm_head.")}
    save_file({**held, "projector.0.weight": first, "projector.2.weight": second}, file)
    edit_config(path, architectures=["JinaForRanking"])
    tokens = json.loads((path / "tokenizer.json").read_text())
    known = {**tokens["added_tokens"][-1]}
    tokens["added_tokens"] += [{**known, "id": 259 + i, "content": mark} for i, mark in enumerate(MARKS)]
    (path / "tokenizer.json").write_text(json.dumps(tokens))
    return path, model, (first, second)


@pytest.mark.slow
@torch.inference_mode()
def test_scores_are_cosines_of_projected_states(tmp_path: Path) -> None:
    path, model, (first, second) = make_ranker(tmp_path)
    llm = LLM(str(path), device="cpu", dtype="float32", use_tqdm_on_load=False, max_num_batched_tokens=256)
    try:
        documents = ["up the river", "down", "a b"]
        outs = llm.score("which way", documents, use_tqdm=False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        ids = tokenizer(written("which way", documents), add_special_tokens=False)["input_ids"]
        assert [list(out.prompt_token_ids) for out in outs] == [ids] * 3
        states = model.model(torch.tensor([ids])).last_hidden_state[0]
        vectors = torch.nn.functional.normalize(torch.relu(states @ first.T) @ second.T, dim=1).numpy()
        want = [float(vectors[i] @ vectors[ids.index(260)]) for i, token in enumerate(ids) if token == 259]
        np.testing.assert_allclose([out.outputs.score for out in outs], want, atol=1e-5)
        apart = llm.score(["which way", "q"], ["down", "a<|embed_token|>b"], use_tqdm=False)
        assert [list(out.prompt_token_ids).count(259) for out in apart] == [1, 1]
        with pytest.raises(RequestError, match="all documents at once"):
            llm.score("q", "d", tokenization_kwargs={"truncate_prompt_tokens": 40}, use_tqdm=False)
    finally:
        llm.shutdown()
