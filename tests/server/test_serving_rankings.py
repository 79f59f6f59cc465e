"""A listwise reranker over HTTP: the order of documents, with an instruction and cut documents."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest
from test_serve_process import Process

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
from test_listwise_rerankers import make_ranker

pytestmark = pytest.mark.nightly


def test_documents_are_ranked_together(tmp_path: Path) -> None:
    path, _, _ = make_ranker(tmp_path)
    process = Process(str(path), "--port", "0", "--device", "cpu", "--dtype", "float32", "--served-model-name", "m")
    try:
        url, documents = process.url(), ["up the river", "down", "a b"]
        scored = httpx.post(f"{url}/score", json={"text_1": "way", "text_2": documents}, timeout=60).json()
        scores = [each["score"] for each in scored["data"]]
        ranked = httpx.post(f"{url}/rerank", json={"query": "way", "documents": documents}, timeout=60).json()
        best = sorted(range(3), key=lambda i: -scores[i])
        assert [each["index"] for each in ranked["results"]] == best
        assert [each["relevance_score"] for each in ranked["results"]] == pytest.approx([scores[i] for i in best])
        assert scored["usage"]["prompt_tokens"] == ranked["usage"]["prompt_tokens"]
        fields = {"query": "way", "documents": documents, "instruction": "be strict", "max_tokens_per_doc": 2}
        short = httpx.post(f"{url}/rerank", json=fields, timeout=60).json()
        grown = len("<instruct>\nbe strict\n</instruct>\n") - sum(max(0, len(d) - 2) for d in documents)
        assert short["usage"]["prompt_tokens"] == scored["usage"]["prompt_tokens"] + grown
        cut = httpx.post(f"{url}/rerank", json={**fields, "truncate_prompt_tokens": 8}, timeout=60)
        assert (cut.status_code, "all documents at once" in cut.text) == (400, True)
    finally:
        process.end()
