"""What drafts bring: the same requests with each drafter and without, turn by turn, and the share of right drafts.

    python benchmarks/speculation.py [--model DIR | --shape NAME] [--device cpu] [--methods ngram suffix draft_model mtp]
                                     [--tokens 3] [--cases copy random chat] [--streams 1 8] [--repeats 5] [--answers 1]
                                     [--temperature 0] [--always] [--wall]

Prompts loop ("copy"), are drawn at random ("random"), or are held-out chats of the bundled model, by task ("chat"). With the
bundled model what follows a loop goes on looping. A model of random weights (`--shape`) loops as soon as it is greedy.

Every turn runs the same requests. Ratios are of the least CPU times of the process, as other programs may share the machine:
2.0 means half the time. Engines measure whether drafts pay, and make none while they do not. `--always` makes them do it, with
as many drafts as `--tokens` says. The tokens are compared too, and must be equal.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from vs_transformers import shape_model

from thalweg import LLM, SamplingParams
from thalweg.engine.control.speculation.gain import Gain
from thalweg.engine.control.speculation.starts import Starts
from thalweg.nano.score import held_out
from thalweg.nano.tasks import TASKS

PROMPT, NEW = 96, 128
CASES = ("copy", "random", "chat")
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
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[3], help="drafts of a sequence in a step; several: each in turn"
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--answers", type=int, default=1, help="chats of each task")
    parser.add_argument("--temperature", type=float, default=0.0, help="of chats")
    parser.add_argument("--always", action="store_true", help="make drafts whether they pay or not")
    parser.add_argument("--wall", action="store_true", help="measure time on the wall rather than CPU time")
    args = parser.parse_args()
    if args.always:
        Gain.allows = lambda self, streams: True  # type: ignore[method-assign]
        Gain.choose = lambda self, streams: self._widths[0]  # type: ignore[method-assign]
        Starts.choose = lambda self, times: setattr(self, "first", 1)  # type: ignore[method-assign]
    clock = time.perf_counter if args.wall else time.process_time
    with tempfile.TemporaryDirectory() as scratch:
        bundled = not args.model and not args.shape
        model = args.model or (shape_model(args.shape, None, Path(scratch)) if args.shape else "thalweg-nano")
        pairs = [(m, k) for m in args.methods for k in args.tokens]
        drafters = {"off": None} | {f"{m} {k}": {**METHODS[m], "num_speculative_tokens": k} for m, k in pairs}
        engines = {name: engine(str(model), args.device, max(args.streams), d) for name, d in drafters.items()}
        report: dict[str, Any] = {}
        for streams in args.streams:
            for case in [c for c in args.cases if c != "chat" or (bundled and streams == 1)]:
                report |= compare(engines, case, groups(engines["off"], case, streams, args), args.repeats, clock)
    print(json.dumps(report, indent=2))


def compare(
    engines: dict[str, LLM], case: str, work: dict[str, Requests], repeats: int, clock: Callable[[], float]
) -> dict[str, Any]:
    """Each engine's ratio to the first one for each group of requests and for all, and its acceptance. SystemExit if a text
    differs."""
    least = {(method, name): float("inf") for method in engines for name in work}
    before = {m: llm.stats() for m, llm in engines.items()}
    for repeat in range(repeats):
        for name, requested in work.items():
            texts = []
            for method, llm in list(engines.items())[:: 1 - 2 * (repeat % 2)]:
                seconds, text = run(llm, requested, clock)
                least[method, name] = min(least[method, name], seconds)
                texts.append(text)
            if any(text != texts[0] for text in texts):
                raise SystemExit(f"{name}: the text differs with drafts and without")
    totals = {method: sum(least[method, name] for name in work) for method in engines}
    found: dict[str, Any] = {"off": {"seconds": round(totals["off"], 4)}}
    for method in [m for m in engines if m != "off"]:
        old, new = before[method], engines[method].stats()
        drafted, accepted = new.draft_tokens - old.draft_tokens, new.accepted_tokens - old.accepted_tokens
        found[method] = {
            "speedup": round(totals["off"] / totals[method], 2), "accepted": round(accepted / max(1, drafted), 3),
            "accepted_per_draft_step": round(accepted / max(1, new.drafts - old.drafts), 2),
        }  # fmt: skip
        if len(work) > 1:
            found[method]["of"] = {name: round(least["off", name] / least[method, name], 2) for name in work}
        print(f"{case:20} {method:14} {found[method]}", file=sys.stderr, flush=True)
    return {case if len(work) > 1 else next(iter(work)): found}


def engine(model: str, device: str, streams: int, drafts: dict[str, Any] | None) -> LLM:
    llm = LLM(
        model, device=device, max_model_len=2048, max_num_seqs=streams, enable_prefix_caching=False, use_tqdm_on_load=False,
        speculative_config=drafts,
    )  # fmt: skip
    run(llm, requests(llm, "copy", 2, 99))  # warm
    return llm


def groups(llm: LLM, case: str, streams: int, args: argparse.Namespace) -> dict[str, Requests]:
    """Requests that are measured together, by name: chats by task."""
    if case != "chat":
        return {f"{case}, {streams} streams": requests(llm, case, streams, 0)}
    out: dict[str, Requests] = {}
    for task in TASKS:
        prompts = [{"messages": list(e.messages), "tools": list(e.tools) or None} for e in held_out(task, args.answers, 5)]
        out[task] = prompts, [SamplingParams(max_tokens=NEW, temperature=args.temperature, seed=1)] * args.answers
    return out


def requests(llm: LLM, case: str, streams: int, seed: int) -> Requests:
    """As many as there are streams. Half of the copies are greedy. Random ones all draw their tokens."""
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


def run(llm: LLM, work: Requests, clock: Callable[[], float] = time.process_time) -> tuple[float, list[list[int]]]:
    """Seconds, and the tokens of every request. Chats run one after the other."""
    prompts, params = work
    begin = clock()
    if "messages" in prompts[0]:
        outs = [
            o
            for p, s in zip(prompts, params, strict=True)
            for o in llm.chat(p["messages"], s, tools=p["tools"], use_tqdm=False)
        ]
    else:
        outs = llm.generate(prompts, params, use_tqdm=False)
    return clock() - begin, [list(o.outputs[0].token_ids) for o in outs]


if __name__ == "__main__":
    main()
