"""Does a device serve what the reference serves? Whole requests of the bundled model, in float32, as JSON.

    python ci/gpu/checks.py --device cuda [--have FILE] [--output-json FILE]

greedy: the tokens of the reference, computed on the host. random: the same seeds give the same tokens there. crowd: a request
alone and among others, every token and every bit of the log probabilities. schedule: a running request keeps its bits when a
neighbour arrives, whatever the length of that one's prompt (LENGTHS). captured: with and without graphs, every bit likewise.
Exit status: 0 if every check that applies holds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from thalweg import LLM, SamplingParams
from thalweg.hal import discovery

Story = list[tuple[list[int], list[float]]]
"""Per request: its tokens, and their log probabilities."""
CHECKS = ("greedy", "random", "crowd", "schedule", "captured")
GRAPH_SIZES = (1, 4, 16)
"""Sequences of the captured steps: enough to meet graphs, few enough to be captured in seconds."""
LENGTHS = (9, 10, 17, 65)
"""Tokens of the neighbour's prompt. A kernel that chooses its tile by the longest prompt of a batch changes it between 9 and 10
(vLLM's issue 51902)."""
ARRIVAL = 4
"""Tokens that the first request has made when its neighbour arrives."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, help="platform to check: a name, or package.module:Class")
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=48, help="tokens of each request")
    parser.add_argument("--have", type=Path, metavar="FILE", help="an earlier report; checks in it are not made again")
    parser.add_argument("--output-json", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {} if args.have is None else json.loads(args.have.read_text())["figures"]
    report: dict[str, Any] = {"device": args.device, "figures": found}
    for name, value in check(args.device, args.requests, args.tokens, tuple(found)):
        found[name] = value
        print(f"{name}: {json.dumps(value)[:600]}", flush=True)
        if args.output_json:
            args.output_json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(c["holds"] is not False for c in found.values()) else 1


def check(device: str, requests: int, tokens: int, have: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, what was found) of each check that is not in `have`, as it is made. One engine of the reference, one of the
    device, and one more without graphs."""
    todo = [name for name in CHECKS if name not in have]
    if not todo:
        return
    with open_bundled(device, **limit_graphs(device)) as llm:
        got = collect_story(llm, requests, tokens)
        if {"greedy", "random"} & set(todo):
            with open_bundled("reference") as reference:
                for name, temperature in (("greedy", 0.0), ("random", 0.9)):
                    if name in todo:
                        mine = collect_story(llm, requests, tokens, temperature) if temperature else got
                        yield name, compare(mine, collect_story(reference, requests, tokens, temperature), exact=False)
        if "crowd" in todo:
            yield "crowd", compare(got[:1], collect_story(llm, 1, tokens))
        if "schedule" in todo:
            yield "schedule", check_schedule(llm, tokens)
    if "captured" in todo:
        yield "captured", captured(device, got, requests, tokens)


def captured(device: str, got: Story, requests: int, tokens: int) -> dict[str, Any]:
    """`got`, which may come from graphs, compared with the same without them."""
    options = discovery.load(device).options
    if options is None or not hasattr(options, "graphs"):
        return {"holds": None, "why": "this platform captures no graphs"}
    with open_bundled(device, additional_config={"graphs": False}) as llm:
        return compare(got, collect_story(llm, requests, tokens))


def limit_graphs(device: str) -> dict[str, Any]:
    """Arguments of an engine that captures GRAPH_SIZES, where the platform can be told which."""
    can = hasattr(discovery.load(device).options, "graph_sizes")
    return {"additional_config": {"graph_sizes": list(GRAPH_SIZES)}} if can else {}


@contextmanager
def open_bundled(device: str, **args: Any) -> Iterator[LLM]:
    """The bundled model."""
    llm = LLM(device=device, dtype="float32", max_model_len=512, enable_prefix_caching=False, **args)
    try:
        yield llm
    finally:
        llm.shutdown()


def serve(device: str, requests: int, tokens: int, temperature: float, **args: Any) -> tuple[Story, list[str]]:
    """(story, kernel plan) of an engine that is opened for it."""
    with open_bundled(device, **args) as llm:
        return collect_story(llm, requests, tokens, temperature), llm.kernel_plan


def collect_story(llm: LLM, requests: int, tokens: int, temperature: float = 0.0) -> Story:
    """The same requests for the same numbers; the first is the same whatever the number."""
    draws = [np.random.default_rng(i) for i in range(requests)]
    prompts = [rng.integers(1, 200, int(rng.integers(3, 150))).tolist() for rng in draws]
    params = [
        SamplingParams(temperature=temperature, seed=i, max_tokens=tokens + i, ignore_eos=True, logprobs=0, detokenize=False)
        for i in range(requests)
    ]
    return _generate(llm, prompts, params)


def collect_stories(llm: LLM, prompts: Sequence[list[int]], tokens: int) -> Story:
    """Greedy tokens of these prompts, all at once."""
    params = [SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=0, detokenize=False)] * len(prompts)
    return _generate(llm, prompts, params)


def _generate(llm: LLM, prompts: Sequence[list[int]], params: Sequence[SamplingParams]) -> Story:
    done = llm.generate([{"prompt_token_ids": p} for p in prompts], list(params), use_tqdm=False)
    return [_read_story(r) for r in done]


def _read_story(request: Any) -> tuple[list[int], list[float]]:
    result = request.outputs[0]
    return list(result.token_ids), [p[t].logprob for t, p in zip(result.token_ids, result.logprobs, strict=True)]


def check_schedule(llm: LLM, tokens: int, lengths: Sequence[int] = LENGTHS) -> dict[str, Any]:
    """Each length of a neighbour's prompt: is the first request's story that of the request alone?"""
    alone = run_with_neighbour(llm, tokens, 0)
    found = {n: compare([run_with_neighbour(llm, tokens, n)], [alone]) for n in lengths}
    return {
        "holds": all(f["holds"] for f in found.values()), "lengths": list(found),
        "differ": {str(n): f for n, f in found.items() if not f["holds"]},
    }  # fmt: skip


def run_with_neighbour(llm: LLM, tokens: int, neighbour: int) -> tuple[list[int], list[float]]:
    """The story of a request next to which another, of so many tokens, arrives after ARRIVAL tokens. 0: none does."""
    rng, engine = np.random.default_rng(7), llm.llm_engine
    prompt, other = rng.integers(1, 200, 40).tolist(), rng.integers(1, 200, max(1, neighbour)).tolist()
    asks = partial(SamplingParams, temperature=0, ignore_eos=True, logprobs=0, detokenize=False)
    engine.add_request("first", {"prompt_token_ids": prompt}, asks(max_tokens=max(tokens, ARRIVAL + 4)))
    waits, last = neighbour > 0, None
    while engine.has_unfinished_requests():
        output: Any
        for output in engine.step():
            last = output if output.request_id == "first" else last
        if waits and last is not None and len(last.outputs[0].token_ids) >= ARRIVAL:
            waits = False
            engine.add_request("neighbour", {"prompt_token_ids": other}, asks(max_tokens=4))
    assert not waits, "the first request ended before its neighbour arrived"
    return _read_story(last)


def compare(got: Story, want: Story, exact: bool = True) -> dict[str, Any]:
    """Tokens must be equal; with `exact` the bits of their log probabilities too."""
    first = [
        next((i for i, (a, b) in enumerate(zip(g, w, strict=True)) if a != b), None)
        for (g, _), (w, _) in zip(got, want, strict=True)
    ]
    same = [(g, w) for (_, g), (_, w), f in zip(got, want, first, strict=True) if f is None]
    worst = max((abs(a - b) for g, w in same for a, b in zip(g, w, strict=True)), default=0.0)
    return {
        "holds": all(f is None for f in first) and (worst == 0 or not exact),
        "requests": len(got),
        "tokens_differ_from": {str(i): f for i, f in enumerate(first) if f is not None},
        "largest_logprob_difference": worst,
    }


if __name__ == "__main__":
    sys.exit(main())
