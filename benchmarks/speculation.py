"""What drafts bring: the same requests with each drafter and without, turn by turn, and the share of right drafts.

    python benchmarks/speculation.py [--model DIR | --shape NAME] [--device cpu] [--methods ngram suffix draft_model mtp]
                                     [--tokens 3] [--streams 1 8] [--repeats 5] [--always]

Prompts loop ("copy"), are drawn at random ("random"), or are held-out chats of the bundled model, one of each task after the
other ("chat"). With the bundled model what follows a loop goes on looping. A model of random weights (`--shape`) loops as soon
as it is greedy.

Ratios are of the least times: 2.0 means twice the tokens per second. Engines measure whether drafts pay, and make none while
they do not. `--always` makes them do it anyway. The tokens are compared too, and must be equal.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from vs_transformers import shape_model

from thalweg import LLM, SamplingParams
from thalweg.engine.control.speculation.gain import Gain
from thalweg.nano.score import held_out
from thalweg.nano.tasks import TASKS

PROMPT, NEW = 96, 128
METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "suffix": {"method": "suffix"},
    "draft_model": {"method": "draft_model", "model": "thalweg-nano-draft"},
    "mtp": {"method": "mtp"},
}
Requests = tuple[list[Any], list[SamplingParams]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a directory; default: the bundled model")
    parser.add_argument("--shape", help="random weights of this shape instead")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["ngram", "suffix"])
    parser.add_argument("--tokens", type=int, default=3, help="drafts of a sequence in a step")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--always", action="store_true", help="make drafts whether they pay or not")
    args = parser.parse_args()
    if args.always:
        Gain.allows = lambda self, streams: True  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as scratch:
        bundled = not args.model and not args.shape
        model = args.model or (shape_model(args.shape, None, Path(scratch)) if args.shape else "thalweg-nano")
        drafters = {"off": None} | {m: {**METHODS[m], "num_speculative_tokens": args.tokens} for m in args.methods}
        engines = {name: engine(str(model), args.device, max(args.streams), d) for name, d in drafters.items()}
        report: dict[str, Any] = {}
        for streams in args.streams:
            for case in ("copy", "random", *["chat"] * (bundled and streams == 1)):
                report |= compare(engines, case, streams, args.repeats)
    print(json.dumps(report, indent=2))


def compare(engines: dict[str, LLM], case: str, streams: int, repeats: int) -> dict[str, Any]:
    """Each engine's ratio to the first one, and its acceptance. SystemExit if a text differs."""
    name, least = f"{case}, {streams} streams", dict.fromkeys(engines, float("inf"))
    before = {m: llm.stats() for m, llm in engines.items()}
    for repeat in range(repeats):
        texts = []
        for method, llm in engines.items():
            seconds, text = run(llm, requests(llm, case, streams, repeat))
            least[method] = min(least[method], seconds)
            texts.append(text)
        if any(text != texts[0] for text in texts):
            raise SystemExit(f"{name}: the text differs with drafts and without")
    found: dict[str, Any] = {"off": {"seconds": least["off"]}}
    for method in [m for m in engines if m != "off"]:
        old, new = before[method], engines[method].stats()
        drafted, accepted = new.draft_tokens - old.draft_tokens, new.accepted_tokens - old.accepted_tokens
        found[method] = {
            "speedup": round(least["off"] / least[method], 2), "accepted": round(accepted / max(1, drafted), 3),
            "accepted_per_draft_step": round(accepted / max(1, new.drafts - old.drafts), 2),
        }  # fmt: skip
        print(f"{name:20} {method:12} {found[method]}", file=sys.stderr, flush=True)
    return {name: found}


def engine(model: str, device: str, streams: int, drafts: dict[str, Any] | None) -> LLM:
    llm = LLM(
        model, device=device, max_model_len=2048, max_num_seqs=streams, enable_prefix_caching=False, use_tqdm_on_load=False,
        speculative_config=drafts,
    )  # fmt: skip
    run(llm, requests(llm, "copy", 2, 99))  # warm
    return llm


def requests(llm: LLM, case: str, streams: int, seed: int) -> Requests:
    """As many as there are streams; of chats one of each task, whose answers end by themselves. Half of the copies are greedy,
    and chats. Random ones all draw their tokens."""
    if case == "chat":
        examples = [held_out(task, 1, seed)[0] for task in TASKS]
        prompts = [{"messages": list(e.messages), "tools": list(e.tools) or None} for e in examples]
        return prompts, [SamplingParams(max_tokens=NEW, temperature=0)] * len(prompts)
    rng = np.random.default_rng(seed)
    vocab = llm.config.model.vocab
    prompts, params = [], []
    for i in range(streams):
        loop = rng.integers(10, vocab, int(rng.integers(5, 20)) if case == "copy" else PROMPT)
        prompts.append({"prompt_token_ids": np.resize(loop, PROMPT).tolist()})
        hot = case == "random" or i % 2 == 1
        heat = 1.0 if case == "random" else 0.5
        params.append(SamplingParams(max_tokens=NEW, ignore_eos=True, temperature=heat if hot else 0, seed=seed + i))
    return prompts, params


def run(llm: LLM, work: Requests) -> tuple[float, list[list[int]]]:
    """Seconds, and the tokens of every request."""
    prompts, params = work
    begin = time.perf_counter()
    if "messages" in prompts[0]:
        outs = [
            o
            for p, s in zip(prompts, params, strict=True)
            for o in llm.chat(p["messages"], s, tools=p["tools"], use_tqdm=False)
        ]
    else:
        outs = llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - begin, [list(o.outputs[0].token_ids) for o in outs]


if __name__ == "__main__":
    main()
