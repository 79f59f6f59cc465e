"""`thalweg bench serve`: load on a running OpenAI-compatible server, open loop (requests arrive by the clock) or closed (a
fixed number at once), measured at the client.

Starts no server and no engine. Any server that speaks the API can be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from thalweg.bench import datasets, report
from thalweg.bench.client import Address, Client, Outcome, address
from thalweg.bench.common import at_least, check_output, write
from thalweg.bench.datasets import SampleRequest
from thalweg.checkpoint.tokenizer import load_tokenizer
from thalweg.errors import CheckpointError, ConfigError, ThalwegError
from thalweg.host import envs
from thalweg.params import NUMBERS, SAMPLER
from thalweg.text.tokenizer import Tokenizer

BACKENDS = {"openai": "/v1/completions", "vllm": "/v1/completions", "openai-chat": "/v1/chat/completions"}
"""Request formats, and the route each is for. "vllm" is another name of "openai"."""
DATASETS = ("random", "sharegpt", "custom", "prefix_repetition")
REFUSED = (
    "use-beam-search", "profile", "lora-modules", "lora-assignment", "plot-timeline", "timeline-itl-thresholds",
    "plot-dataset-stats", "no-stream", "skip-chat-template", "enable-multimodal-chat", "trust-remote-code",
    "spec-bench-output-len", "spec-bench-category", "sonnet-input-len", "sonnet-output-len", "sonnet-prefix-len",
    "blazedit-min-distance", "blazedit-max-distance", "asr-max-audio-len-sec", "asr-min-audio-len-sec", "hf-subset", "hf-split",
    "hf-name", "hf-output-len", "speed-bench-dataset-subset", "speed-bench-output-len", "speed-bench-category",
    "random-batch-size", "no-reranker", "random-mm-base-items-per-request", "random-mm-num-mm-items-range-ratio",
    "random-mm-limit-mm-per-prompt", "random-mm-bucket-config",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--base-url", help="address of the server, instead of host and port")
    add("--host", default="127.0.0.1", help="(default 127.0.0.1)")
    add("--port", type=int, default=8000, help="(default 8000)")
    add("--backend", default="openai", choices=sorted(BACKENDS), help="request format (default openai: completions)")
    add("--endpoint", help="route to call (default: that of the format; a chat route chooses the chat format)")
    add("--header", action="append", nargs="+", metavar="KEY=VALUE", help="headers to send")
    add("--insecure", action="store_true", help="accept any certificate")
    add("--model", help="model to ask for (default: the first the server names)")
    add("--served-model-name", help="its name in requests, where that differs")
    add("--tokenizer", help="directory or hub id (default: the model, where it is one)")
    add("--tokenizer-mode", default="auto", choices=("auto", "hf"), help="(default auto)")
    add("--skip-tokenizer-init", action="store_true", help="prompts are token ids below 256; completions only")
    add("--num-prompts", type=int, default=1000, help="requests (default 1000)")
    add("--request-rate", type=float, default=float("inf"), help="requests per second (default inf: all at once)")
    add("--burstiness", type=float, default=1.0, help="shape of the gamma distribution of gaps; 1 = Poisson (default 1)")
    add("--max-concurrency", type=int, help="at most so many requests open; with an infinite rate a closed loop")
    add("--ramp-up-strategy", choices=("linear", "exponential"), help="let the rate grow over the test")
    add("--ramp-up-start-rps", type=float, help="first rate")
    add("--ramp-up-end-rps", type=float, help="last rate")
    add("--num-warmups", type=int, default=0, help="unmeasured requests before (default 0)")
    add("--ready-check-timeout-sec", type=int, default=0, help="wait so long for the server (default 0: do not)")
    add("--seed", type=int, default=0, help="(default 0)")
    add("--disable-tqdm", action="store_true", help="no progress bar")
    _dataset_arguments(parser)
    _request_arguments(parser)
    _result_arguments(parser)


def _dataset_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("dataset").add_argument
    add("--dataset-name", default="random", help=f"{', '.join(DATASETS)} (default random)")
    add("--dataset-path", help="file of sharegpt or custom")
    add("--input-len", type=int, help="prompt tokens: short for the dataset's flag")
    add("--output-len", type=int, help="answer tokens, likewise")
    add("--random-input-len", type=int, default=1024, help="prompt tokens (default 1024)")
    add("--random-output-len", type=int, default=128, help="answer tokens (default 128)")
    add(
        "--random-range-ratio",
        default="0.0",
        help='lengths vary by this fraction; or JSON {"input": r, "output": r} (default 0)',
    )
    add("--random-prefix-len", type=int, default=0, help="tokens every prompt begins with (default 0)")
    add("--sharegpt-output-len", type=int, help="instead of the dataset's own")
    add("--custom-output-len", type=int, default=256, help="-1: output_tokens of each record (default 256)")
    add("--prefix-repetition-prefix-len", type=int, default=256, help="(default 256)")
    add("--prefix-repetition-suffix-len", type=int, default=256, help="(default 256)")
    add("--prefix-repetition-num-prefixes", type=int, default=10, help="(default 10)")
    add("--prefix-repetition-output-len", type=int, default=128, help="(default 128)")
    add("--disable-shuffle", action="store_true", help="keep the file's order")
    add("--no-oversample", action="store_true", help="do not repeat a small file")


def _request_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("requests").add_argument
    add("--ignore-eos", action="store_true", help="ask for exactly the answer's length")
    for name in SAMPLER:
        add(f"--{name.replace('_', '-')}", type=NUMBERS[name].kind)
    add("--logprobs", type=int, help="logprobs per token")
    add("--extra-body", type=json.loads, help="JSON object of more fields")
    add("--request-id-prefix", help="(default bench-<hex>-)")


def _result_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("results").add_argument
    add("--percentile-metrics", help="of ttft,tpot,itl,e2el (default: all)")
    add("--metric-percentiles", default="99", help="comma-separated (default 99)")
    add("--goodput", action="append", nargs="+", metavar="KEY:MS", help="levels of ttft, tpot, e2el that count as good")
    add("--save-result", action="store_true", help="write the result as JSON")
    add("--save-detailed", action="store_true", help="with every request's times and text")
    add("--append-result", action="store_true", help="add a line to the file instead of replacing it")
    add("--result-dir", help="(default: here)")
    add("--result-filename", help="(default: made of label, rate, model and time)")
    add("--output-json", metavar="FILE", help="write the result to this file")
    add("--metadata", action="append", nargs="+", metavar="KEY=VALUE", help="stored in the result")
    add("--label", help="name of the result (default: the backend)")
    add("--plot", metavar="FILE.png", help="distributions of the metrics; needs matplotlib")


def main(a: argparse.Namespace) -> dict[str, Any]:
    """Run and print the table. Returns the result, as written. ConfigError for wrong flags before anything is sent,
    ThalwegError if the server cannot be reached or no request was answered."""
    metrics, percents, levels = _figures(a)
    _check(a)
    chat = _is_chat(a)
    to = address(a.base_url, a.host, a.port, a.endpoint or BACKENDS[a.backend], insecure=a.insecure)
    load = asyncio.run(_main(a, to, chat))
    model, outcomes, seconds = load
    result: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S"), "label": a.label or a.backend, "backend": a.backend, "model_id": model,
        "endpoint_type": "chat" if chat else "completions", "num_prompts": len(outcomes), "dataset_name": a.dataset_name,
        "request_rate": a.request_rate if np.isfinite(a.request_rate) else "inf", "burstiness": a.burstiness,
        "max_concurrency": a.max_concurrency, "seed": a.seed, **_pairs("--metadata", a.metadata),
        **report.summary(outcomes, seconds, percents=percents, metrics=metrics, levels=levels),
    }  # fmt: skip
    if levels:
        result["goodput_levels_ms"] = levels
    print(report.table(result, metrics, percents))
    errors = sorted({o.error for o in outcomes if o.error})
    for error in errors[:5]:
        print(f"failed: {error[:300]}", file=sys.stderr)
    _save(a, result, outcomes)
    if a.plot:
        report.plot(a.plot, outcomes, metrics, f"{model}, {result['completed']} requests, rate {result['request_rate']}")
    if not result["completed"]:
        raise ThalwegError("bench serve: no request was answered")
    return result


# ---------------------------------------------------------------- flags


def _check(a: argparse.Namespace) -> None:
    at_least(1, num_prompts=a.num_prompts, max_concurrency=a.max_concurrency, input_len=a.input_len, output_len=a.output_len,
             random_input_len=a.random_input_len, random_output_len=a.random_output_len,
             sharegpt_output_len=a.sharegpt_output_len)  # fmt: skip
    at_least(0, num_warmups=a.num_warmups, ready_check_timeout_sec=a.ready_check_timeout_sec, seed=a.seed,
             random_prefix_len=a.random_prefix_len, logprobs=a.logprobs)  # fmt: skip
    if a.dataset_name not in DATASETS:
        raise ConfigError(f"--dataset-name: {a.dataset_name!r} is not in this version; there are {', '.join(DATASETS)}")
    if a.dataset_name in ("sharegpt", "custom") and not a.dataset_path:
        raise ConfigError(f"--dataset-path: {a.dataset_name} needs the file; nothing is downloaded")
    if a.dataset_name not in ("sharegpt", "custom") and a.dataset_path:
        raise ConfigError(f"--dataset-path: {a.dataset_name} prompts come from no file; remove the flag")
    for name, value in (("--request-rate", a.request_rate), ("--burstiness", a.burstiness)):
        if not value > 0:
            raise ConfigError(f"{name}: {value} must be above 0")
    ramp = (a.ramp_up_strategy, a.ramp_up_start_rps, a.ramp_up_end_rps)
    if any(x is not None for x in ramp):
        if None in ramp or np.isfinite(a.request_rate):
            raise ConfigError("--ramp-up-strategy: needs --ramp-up-start-rps and --ramp-up-end-rps, and no --request-rate")
        if not 0 <= a.ramp_up_start_rps < a.ramp_up_end_rps:
            raise ConfigError("--ramp-up-end-rps: must be above --ramp-up-start-rps, and neither below 0")
        if a.ramp_up_strategy == "exponential" and a.ramp_up_start_rps == 0:
            raise ConfigError("--ramp-up-start-rps: an exponential ramp cannot begin at 0")
    if a.extra_body is not None and not isinstance(a.extra_body, dict):
        raise ConfigError("--extra-body: must be a JSON object")
    if (a.result_dir or a.result_filename or a.append_result or a.save_detailed) and not (a.save_result or a.output_json):
        raise ConfigError("--save-result: must be given too, or nothing is written")
    check_output(a.output_json)
    report.check_plot(a.plot)
    _pairs("--metadata", a.metadata)
    _ratios(a.random_range_ratio)


def _is_chat(a: argparse.Namespace) -> bool:
    """The format follows the route. A --backend that says otherwise is a mistake."""
    endpoint = a.endpoint or BACKENDS[a.backend]
    chat = endpoint.rstrip("/").endswith("/chat/completions")
    if not chat and not endpoint.rstrip("/").endswith("/completions"):
        raise ConfigError(f"--endpoint: {endpoint!r} is neither a completions nor a chat completions route")
    if a.backend == "openai-chat" and not chat:
        raise ConfigError(f"--endpoint: {endpoint!r} is not a chat route, and --backend openai-chat asks for one")
    if a.skip_tokenizer_init and chat:
        raise ConfigError("--skip-tokenizer-init: chat messages are text; remove the flag, or use --backend openai")
    if chat and a.logprobs is not None and a.logprobs > 0 and a.extra_body and "top_logprobs" in a.extra_body:
        raise ConfigError("--extra-body: top_logprobs means the same as --logprobs; give only one")
    return chat


def _figures(a: argparse.Namespace) -> tuple[list[str], list[float], dict[str, float]]:
    metrics = [m.strip() for m in (a.percentile_metrics or ",".join(report.METRICS)).split(",")]
    if odd := [m for m in metrics if m not in report.METRICS]:
        raise ConfigError(f"--percentile-metrics: unknown metric {odd[0]!r}; supported: {', '.join(report.METRICS)}")
    try:
        percents = [float(p) for p in a.metric_percentiles.split(",")]
    except ValueError:
        raise ConfigError(f"--metric-percentiles: {a.metric_percentiles!r} must be numbers such as 50,90,99") from None
    if not all(0 <= p <= 100 for p in percents):
        raise ConfigError("--metric-percentiles: must be between 0 and 100")
    levels = {}
    for word in _words(a.goodput):
        key, _, value = word.partition(":")
        try:
            levels[key] = float(value)
        except ValueError:
            levels[key] = -1.0
        if key not in ("ttft", "tpot", "e2el") or not levels[key] > 0:
            raise ConfigError(f"--goodput: {word!r} must be ttft, tpot or e2el, a colon, and milliseconds (ttft:200)")
    return metrics, percents, levels


def _words(given: Sequence[Sequence[str]] | None) -> list[str]:
    return [w for group in given or () for w in group]


def _pairs(flag: str, given: Sequence[Sequence[str]] | None) -> dict[str, str]:
    words = _words(given)
    if odd := [w for w in words if "=" not in w or w.startswith("=")]:
        raise ConfigError(f"{flag}: {odd[0]!r} must be KEY=VALUE")
    return dict(w.split("=", 1) for w in words)


def _ratios(text: str) -> tuple[float, float]:
    try:
        value = json.loads(text)
        pair = (value["input"], value["output"]) if isinstance(value, dict) else (value, value)
        ratios = float(pair[0]), float(pair[1])
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f'--random-range-ratio: {text!r} must be a number, or {{"input": r, "output": r}}') from None
    if not all(0 <= r < 1 for r in ratios):
        raise ConfigError(f"--random-range-ratio: {text} must be at least 0 and below 1")
    return ratios


# ---------------------------------------------------------------- what is sent


def _tokenizer(a: argparse.Namespace, model: str) -> Tokenizer | None:
    if a.skip_tokenizer_init:
        return None
    from thalweg.checkpoint.hub import resolve_model

    name = a.tokenizer or model
    try:
        return load_tokenizer(Path(name) if Path(name).is_dir() else resolve_model(name))
    except CheckpointError as e:
        how = "give a directory or hub id, or --skip-tokenizer-init to send token ids"
        raise ConfigError(f"--tokenizer: {name!r} has none that can be loaded ({e}); {how}") from None


def _asks(a: argparse.Namespace, tokenizer: Tokenizer | None) -> list[SampleRequest]:
    n, out = a.num_prompts, a.output_len
    match a.dataset_name:
        case "random":
            spec = datasets.Random(
                a.input_len or a.random_input_len,
                out or a.random_output_len,
                _ratios(a.random_range_ratio),
                a.random_prefix_len,
            )
            return datasets.random_asks(spec, n, a.seed, tokenizer)
        case "prefix_repetition":
            at_least(1, prefix_repetition_prefix_len=a.prefix_repetition_prefix_len,
                     prefix_repetition_suffix_len=a.prefix_repetition_suffix_len,
                     prefix_repetition_num_prefixes=a.prefix_repetition_num_prefixes,
                     prefix_repetition_output_len=a.prefix_repetition_output_len)  # fmt: skip
            suffix = a.input_len or a.prefix_repetition_suffix_len
            return datasets.prefix_asks(
                a.prefix_repetition_num_prefixes, a.prefix_repetition_prefix_len, suffix,
                out or a.prefix_repetition_output_len, n, a.seed, tokenizer,
            )  # fmt: skip
    if a.input_len:
        raise ConfigError(f"--input-len: {a.dataset_name} prompts have a fixed length; remove the flag")
    if a.dataset_name == "sharegpt":
        out = out or a.sharegpt_output_len
    elif a.custom_output_len != -1:
        at_least(1, custom_output_len=a.custom_output_len)
        out = out or a.custom_output_len
    return datasets.file_asks(
        a.dataset_name, a.dataset_path, n, a.seed, tokenizer,
        output_len=out, shuffle=not a.disable_shuffle, repeat=not a.no_oversample,
    )  # fmt: skip


def gaps(n: int, rate: float, burstiness: float, seed: int, ramp: tuple[str, float, float] | None = None) -> np.ndarray:
    """Seconds from the start at which each of n requests is due. Gaps are gamma-distributed with mean 1 / rate and
    shape `burstiness` (1: a Poisson process). They are then scaled so that the last request is due at n / rate: the
    rate offered is the rate asked for. ramp: (strategy, first, last): the rate grows from request to request instead."""
    if ramp is None and not np.isfinite(rate):
        return np.zeros(n)
    share = np.arange(n) / max(1, n - 1)
    rates = np.full(n, rate)
    if ramp is not None:
        kind, first, last = ramp
        rates = first + (last - first) * share if kind == "linear" else first * (last / first) ** share
        rates = np.maximum(rates, 1e-2 * last)  # a ramp from 0 begins somewhere
    drawn = np.random.default_rng(seed).gamma(burstiness, 1 / burstiness, n) / rates
    due = np.cumsum(drawn)
    return due if ramp is not None else due * (n / rate / due[-1])


def _body(a: argparse.Namespace, ask: SampleRequest, model: str, chat: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    if chat:
        body |= {"messages": [{"role": "user", "content": ask.prompt}], "max_completion_tokens": ask.output_len}
    else:
        body |= {"prompt": ask.prompt, "max_tokens": ask.output_len}
    body |= {n: v for n in SAMPLER if (v := getattr(a, n)) is not None}
    if a.ignore_eos:
        body["ignore_eos"] = True
    if a.logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": a.logprobs} if chat else {"logprobs": a.logprobs}
    return body | (a.extra_body or {})


# ---------------------------------------------------------------- the load


async def _main(a: argparse.Namespace, to: Address, chat: bool) -> tuple[str, list[Outcome], float]:
    """(model, outcomes in the order of requests, seconds)."""
    headers = _pairs("--header", a.header)
    key = envs.client_api_key()
    if key and "authorization" not in {h.lower() for h in headers}:
        headers["Authorization"] = f"Bearer {key}"
    client = Client(to, headers, keep_text=a.save_detailed)
    try:
        name = a.served_model_name or a.model or await _first_model(client, to, a.ready_check_timeout_sec)
        asks = _asks(a, _tokenizer(a, a.model or name))
        bodies = [_body(a, ask, name, chat) for ask in asks]
        await _warm_up(client, bodies[0], a)
        ramp = (a.ramp_up_strategy, a.ramp_up_start_rps, a.ramp_up_end_rps) if a.ramp_up_strategy else None
        due = gaps(len(bodies), a.request_rate, a.burstiness, a.seed, ramp)
        prefix = a.request_id_prefix if a.request_id_prefix is not None else f"bench-{uuid.uuid4().hex[:8]}-"
        bar = tqdm(total=len(bodies), unit="req", disable=a.disable_tqdm or not sys.stderr.isatty())
        with bar:
            outcomes, seconds = await send_all(client, bodies, due, a.max_concurrency, prefix, bar)
        for o, ask in zip(outcomes, asks, strict=True):
            o.prompt_tokens = o.prompt_tokens or ask.input_len
        return name, outcomes, seconds
    finally:
        await client.close()


async def send_all(
    client: Client, bodies: Sequence[Any], due: np.ndarray, concurrency: int | None, prefix: str, bar: Any = None
) -> tuple[list[Outcome], float]:
    """Send each body when it is due, with at most `concurrency` open. A request's clock starts when it is sent.
    Returns (outcomes, seconds from the start to the last answer)."""
    gate = asyncio.Semaphore(concurrency) if concurrency else None

    async def one(i: int) -> Outcome:
        if gate is not None:
            await gate.acquire()
        try:
            return await client.stream(bodies[i], f"{prefix}{i}" if prefix else "")
        finally:
            if gate is not None:
                gate.release()
            if bar is not None:
                bar.update()

    start, tasks = time.perf_counter(), []
    for i, at in enumerate(due):
        wait = start + at - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(one(i)))
    outcomes = await asyncio.gather(*tasks)
    return outcomes, time.perf_counter() - start


async def _first_model(client: Client, to: Address, patience: int) -> str:
    deadline = time.monotonic() + patience
    while True:
        try:
            return str((await client.get("/v1/models"))["data"][0]["id"])
        except (OSError, ValueError, LookupError, TypeError) as e:
            if time.monotonic() >= deadline:
                raise ThalwegError(f"cannot ask {to.authority} for its models: {e}; is the server running?") from None
        await asyncio.sleep(0.25)


async def _warm_up(client: Client, body: Any, a: argparse.Namespace) -> None:
    deadline = time.monotonic() + a.ready_check_timeout_sec
    while a.ready_check_timeout_sec:
        outcome = await client.stream(body)
        if outcome.ok:
            break
        if time.monotonic() >= deadline:
            raise ThalwegError(f"the server was not ready within {a.ready_check_timeout_sec} s: {outcome.error}")
        await asyncio.sleep(0.25)
    for outcome in await asyncio.gather(*(client.stream(body) for _ in range(a.num_warmups))):
        if not outcome.ok:
            raise ThalwegError(f"a warm-up request failed: {outcome.error}")


# ---------------------------------------------------------------- results


def _save(a: argparse.Namespace, result: dict[str, Any], outcomes: Sequence[Outcome]) -> None:
    if a.save_detailed:
        zero = min(o.start for o in outcomes)
        result = result | {
            "input_lens": [o.prompt_tokens for o in outcomes],
            "output_lens": [o.output_tokens for o in outcomes],
            "ttfts": [o.ttft for o in outcomes],
            "itls": [o.itls for o in outcomes],
            "start_times": [o.start - zero for o in outcomes],
            "generated_texts": [o.text for o in outcomes],
            "errors": [o.error for o in outcomes],
        }
    write(a.output_json, result)
    if not a.save_result:
        return
    closed = f"-concurrency{a.max_concurrency}" if a.max_concurrency else ""
    name = f"{result['label']}-{result['request_rate']}qps{closed}-{Path(result['model_id']).name}-{result['date']}.json"
    path = Path(a.result_dir or ".") / (a.result_filename or name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if a.append_result else "w", encoding="utf-8") as f:
        f.write(json.dumps(result, indent=None if a.append_result else 2) + "\n")
