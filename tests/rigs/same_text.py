"""Random requests with each drafter and without: the text must be the same, whatever is asked.

    python tests/rigs/same_text.py --requests 10000 [--methods mtp draft_model ngram suffix] [--batch 40] [--seed 0]

The bundled model answers batches of random requests: chats, random tokens and loops, greedy and drawn, with penalties,
log-probabilities, biases, stop strings, several answers, grammars and shared prefixes, in a cache that is too small for all.
Drafts are made whether they pay or not, in two steps of three.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from typing import Any

from thalweg import LLM, SamplingParams
from thalweg.engine.control.speculation.gain import Gain
from thalweg.engine.control.speculation.starts import Starts
from thalweg.nano.score import held_out
from thalweg.nano.tasks import TASKS
from thalweg.params import StructuredOutputsParams

METHODS: dict[str, dict[str, Any]] = {
    "mtp": {"method": "mtp", "num_speculative_tokens": 5},
    "draft_model": {"method": "draft_model", "model": "thalweg-nano-draft", "num_speculative_tokens": 3},
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3},
    "suffix": {"method": "suffix"},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--batch", type=int, default=40, help="requests that are sent together")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    turns = itertools.count()
    Gain.allows = lambda self, streams: next(turns) % 3 != 2  # type: ignore[method-assign]
    Starts.choose = lambda self, times: setattr(self, "first", 1)  # type: ignore[method-assign]
    engines = {"off": open_engine(None)} | {m: open_engine(METHODS[m]) for m in args.methods}
    rng, done, begin = random.Random(args.seed), 0, time.monotonic()
    while done < args.requests:
        n = 1 if rng.random() < 0.2 else min(args.batch, args.requests - done)
        asked = [draw_request(rng, engines["off"]) for _ in range(n)]
        said = {m: answer(llm, asked) for m, llm in engines.items()}
        for method, texts in said.items():
            if texts != said["off"]:
                at = next(i for i, (a, b) in enumerate(zip(texts, said["off"], strict=True)) if a != b)
                print(f"{method}: request {done + at} differs: {asked[at]}\n{said['off'][at]}\n{texts[at]}")
                return 1
        if done // 1000 < (done + n) // 1000:
            print(f"{done + n} requests, {time.monotonic() - begin:.0f} s", flush=True)
        done += n
    for method in args.methods:
        s = engines[method].stats()
        right = f"{s.accepted_tokens} of {s.draft_tokens} drafts right"
        print(f"{method:12} {done} requests equal; {right}, {s.preemptions} preempted")
    print(f"{time.monotonic() - begin:.0f} s")
    return 0


def open_engine(drafts: dict[str, Any] | None) -> LLM:
    return LLM(
        "thalweg-nano", device="cpu", max_model_len=512, max_num_seqs=8, max_num_batched_tokens=160, block_size=16,
        num_gpu_blocks_override=36, use_tqdm_on_load=False, speculative_config=drafts,
    )  # fmt: skip


def draw_request(rng: random.Random, llm: LLM) -> tuple[Any, SamplingParams]:
    kind = rng.choice(("chat", "chat", "loop", "random"))
    if kind == "chat":
        example = held_out(rng.choice([t for t in TASKS if t != "needle"]), 1, rng.randrange(10**6))[0]
        prompt: Any = "\n".join(str(m["content"]) for m in example.messages)[:1000]
    else:
        part = [rng.randrange(10, llm.config.model.vocab) for _ in range(rng.randint(1, 60 if kind == "random" else 9))]
        prompt = {"prompt_token_ids": (part * 9)[: max(len(part), 24)] if kind == "loop" else part}
    params: dict[str, Any] = {"max_tokens": rng.choice((1, 2, 9, 24)), "ignore_eos": rng.random() < 0.4}
    params |= {"temperature": rng.choice((0, 0, 0.5, 1.0)), "seed": rng.randrange(1000)}
    extras: list[dict[str, Any]] = [
        {}, {}, {}, {"top_p": 0.9, "top_k": 20}, {"repetition_penalty": 1.3}, {"presence_penalty": 0.5}, {"logprobs": 2},
        {"logit_bias": {rng.randrange(10, 200): 4.0}}, {"min_tokens": params["max_tokens"]}, {"stop": ["a", "the"]}, {"n": 3},
        {"prompt_logprobs": 1}, {"bad_words": ["the"]},
        {"structured_outputs": StructuredOutputsParams(regex="[a-z]{3,9} [0-9]+"), "ignore_eos": False},
    ]  # fmt: skip
    return prompt, SamplingParams(**params | rng.choice(extras))


def answer(llm: LLM, asked: list[tuple[Any, SamplingParams]]) -> list[Any]:
    outputs = llm.generate([p for p, _ in asked], [s for _, s in asked], use_tqdm=False)
    return [
        [(c.text, tuple(c.token_ids), c.finish_reason, c.stop_reason, _list_logprobs(c.logprobs)) for c in o.outputs]
        for o in outputs
    ]


def _list_logprobs(found: Any) -> Any:
    return found and [{t: v.logprob for t, v in place.items()} for place in found]


if __name__ == "__main__":
    sys.exit(main())
