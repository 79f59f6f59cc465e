"""Train thalweg-nano (or its draft model) from scratch. Seeded; stopped at any time (SIGTERM, Ctrl-C) it goes on where it was.

    python scripts/nano/train.py --work DIR [--minutes 80] [--size nano|draft] [--out DIR]

The work directory holds the tokenizer, the state and a log of losses. The learning rate follows the share of the budget
used: of steps with --steps (the same numbers every time), otherwise of time. Time in which the process does not run (a
machine asleep, a process stopped) does not count. Tasks the model does badly are drawn more often: their weight follows the
accuracy on the validation split. --out writes a checkpoint, at the end or, with --export, of the state as it is.

On a CPU each process computes with one thread and they meet once per step, to add their gradients: small operations gain
little from threads, and a core that other work takes does not hold up every one of them.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
from batches import Batch, batches, draw
from check import accuracy, rows
from dialogues import Dialogues
from export import export
from model import Nano, Shape
from tokenizer import SIZE, save, train
from tokenizers import Tokenizer

from thalweg.nano import TASKS

SHAPES = {
    "nano": Shape(vocab=SIZE, hidden=256, layers=6, heads=4, kv_heads=2, head_dim=64, inner=768),
    "draft": Shape(vocab=SIZE, hidden=128, layers=2, heads=2, kv_heads=1, head_dim=64, inner=384),
}
LENGTH = {"fill_schema": 2.0, "extract_json": 1.4, "tool_call": 2.2, "tool_result": 2.2, "recall": 1.4, "needle": 4.5}
"""What a dialogue of a task costs, beside one of the short tasks."""
SHARE = {
    "arithmetic": 2.0,
    "compare": 1.3,
    "count": 2.5,
    "instruction": 1.5,
    "sort_words": 1.5,
    "tool_call": 1.3,
    "tool_result": 0.6,
}
"""How often a task is drawn beside others that go as well; the slow ones to learn more often."""
LATE = {"needle": 0.5, "fill_schema": 0.15, "tool_call": 0.15, "tool_result": 0.15}
"""Tasks of long dialogues begin rarely and have their full weight from this share of the budget on."""
SMALL = 0.35
"""Until this share of the budget, steps are of half the tokens: noise matters least at first, the number of steps most."""
LONGEST = 1536
"""Dialogues of more tokens are left out."""
WARM, FALL = 0.02, 0.4
"""Shares of the budget: the rate rises in the first, falls to zero in the last."""


@dataclass
class State:
    """What is kept of a run."""

    model: Nano
    optimizers: list[torch.optim.Optimizer]
    seed: int
    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    right: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TASKS, 0.0))
    losses: list[float] = field(default_factory=list)

    def save(self, file: Path) -> None:
        """At once or not at all. Muon's momentum, shared out over the processes, is not kept: it is the mean of some twenty
        steps and soon there again."""
        kept = {k: getattr(self, k) for k in ("seed", "step", "seconds", "tokens", "right", "losses")}
        kept |= {"model": self.model.state_dict(), "adam": self.optimizers[1].state_dict()}
        part = file.with_suffix(".part")
        torch.save(kept, part)
        os.replace(part, file)

    def load(self, file: Path) -> None:
        kept = torch.load(file, weights_only=True, map_location=self.model.norm.device)
        self.model.load_state_dict(kept.pop("model"))
        self.optimizers[1].load_state_dict(kept.pop("adam"))
        for k, v in kept.items():
            setattr(self, k, v)


def main() -> None:
    args = arguments().parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(args.work)
    if args.export is None:
        meeting = args.work / f"meeting-{os.getpid()}"
        others = torch.multiprocessing.start_processes(
            work, (args, str(meeting)), args.processes - 1, join=False, start_method="spawn"
        )
        work(-1, args, str(meeting))
        while not others.join():
            pass
        meeting.unlink(missing_ok=True)
    out = args.export or args.out
    if out is not None:
        save(tokenizer, out)
        export(start(args).model, out)
        print(f"wrote {out}")


def work(index: int, args: argparse.Namespace, meeting: str) -> None:
    """One of the processes: all hold the same model and see different dialogues. The first (index -1) is this one: stopping
    it stops all, at the next step."""
    rank = index + 1
    if rank:
        os.setsid()  # schedulers that share a processor by session then give every process its own share
    if args.device == "cpu":
        torch.set_num_threads(args.threads)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=args.processes)
    run(start(args, rank), _tokenizer(args.work), args, rank)
    dist.destroy_process_group()


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="state and log; a run found here goes on")
    parser.add_argument("--out", type=Path, help="write the trained checkpoint here")
    parser.add_argument("--export", type=Path, help="train nothing: write the state as it is here")
    parser.add_argument("--size", choices=SHAPES, default="nano")
    parser.add_argument("--minutes", type=float, default=80.0, help="budget")
    parser.add_argument("--steps", type=int, help="budget in steps instead")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=4096, help="per step")
    parser.add_argument("--part", type=int, default=4096, help="tokens computed at once")
    parser.add_argument("--matrix-rate", type=float, default=0.005, help="highest learning rate of the matrices (Muon)")
    parser.add_argument("--rate", type=float, default=0.003, help="highest learning rate of the embedding and norms (AdamW)")
    parser.add_argument(
        "--drill", type=float, default=0.7, help="share of dialogues that are long copies, until copying is learned"
    )
    parser.add_argument("--every", type=float, default=150.0, help="seconds between checks, each of which saves the state")
    parser.add_argument("--check", type=int, default=40, help="validation examples per task")
    parser.add_argument("--processes", type=int, default=2, help="that share the work")
    parser.add_argument("--threads", type=int, default=1, help="of each process, on a CPU")
    parser.add_argument("--device", default="cpu", help="a device of torch")
    return parser


def _tokenizer(work: Path) -> Tokenizer:
    file = work / "tokenizer.json"
    if not file.is_file():
        save(train(), work)
    return Tokenizer.from_file(str(file))


def shares(model: Nano, processes: int) -> list[list[torch.nn.Parameter]]:
    """The matrices, split into about equal work: Muon costs as much as some thousand tokens, so each process updates its
    share and hears of the others'."""
    matrices = sorted((p for p in model.blocks.parameters() if p.ndim == 2), key=lambda p: -p.numel())
    return [matrices[i::processes] for i in range(processes)]


def start(args: argparse.Namespace, rank: int = 0) -> State:
    """A new run, or the one found in the work directory."""
    torch.manual_seed(args.seed)
    shape = SHAPES[args.size]
    model = Nano(shape)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 2:
                closed = name.endswith(("out.weight", "down.weight"))
                p.normal_(std=0.0 if closed else 0.02 if "embed" in name else 0.6 / p.shape[1] ** 0.5)
    model.to(args.device)
    matrices = shares(model, args.processes)[rank]
    others = [p for n, p in model.named_parameters() if p.ndim == 1 or "embed" in n]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=args.matrix_rate, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=args.rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    state = State(model, optimizers, args.seed)
    file = args.work / f"{args.size}.pt"
    if file.is_file():
        state.load(file)
        print(f"goes on from step {state.step}, {state.seconds / 60:.1f} minutes")
    return state


def run(state: State, tokenizer: Tokenizer, args: argparse.Namespace, rank: int) -> None:
    """Train to the end of the budget, or until told to stop. What the processes decide together they decide by sums."""
    file = args.work / f"{args.size}.pt"
    examples = {t: e[rank :: args.processes] for t, e in rows(tokenizer, "validation", args.check).items()}
    source = Dialogues(weights(state.right, progress(state, args)), seed=(state.seed * 1_000_003 + state.step) * 64 + rank)
    source.drill = drill(state.right, args.drill)
    device = torch.device(args.device)
    stopped: list[int] = []
    for s in (signal.SIGTERM, signal.SIGINT):
        signal.signal(s, lambda number, frame: stopped.append(number))
    clock, checked, stop = Clock(), state.seconds, False
    while (share := progress(state, args)) < 1 and not stop:
        set_rates(state.optimizers, args, share)
        tokens = args.tokens // args.processes // (2 if share < SMALL else 1)
        parts = batches(draw(source, tokenizer, tokens, LONGEST), args.part)
        took, stops = train_step(state, parts, device, (clock.lap() if rank == 0 else 0.0, len(stopped)))
        state.step, state.seconds, stop = state.step + 1, state.seconds + took, stops > 0
        if state.seconds - checked >= args.every:
            checked = state.seconds
            check(state, examples, device, rank)
            source.weights, source.drill = weights(state.right, share), drill(state.right, args.drill)
            if rank == 0:
                state.save(file)
            clock.last = time.monotonic()
    check(state, examples, device, rank)
    if rank == 0:
        state.save(file)


class Clock:
    """Time between laps; a lap far longer than the usual one counts as a usual one: the process did not run."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self.laps: list[float] = []

    def lap(self) -> float:
        now = time.monotonic()
        took, self.last = now - self.last, now
        usual = statistics.median(self.laps[-50:]) if self.laps else took
        self.laps.append(took)
        return took if took < 5 * usual else usual


def progress(state: State, args: argparse.Namespace) -> float:
    return state.step / args.steps if args.steps else state.seconds / (60 * args.minutes)


def set_rates(optimizers: list[torch.optim.Optimizer], args: argparse.Namespace, share: float) -> None:
    """Warm up, stay, fall to zero."""
    scale = min(1.0, (share + 1e-3) / WARM, (1 - share) / FALL)
    for optimizer, rate in zip(optimizers, (args.matrix_rate, args.rate), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate * scale


def train_step(state: State, parts: list[Batch], device: torch.device, sums: tuple[float, float]) -> tuple[float, float]:
    """One step of the optimizers, of all processes. Notes the mean loss, weighted, of the tokens the assistant writes; returns
    the sums over all processes of `sums`."""
    total = count = 0.0
    for part in parts:
        b = part.to(device)
        with torch.autocast(device.type, torch.bfloat16):
            logits = state.model.logits(state.model(b.ids, b.groups)[b.own])
        loss = (F.cross_entropy(logits.float(), b.targets, reduction="none") * b.weight).sum()
        loss.backward()
        total += float(loss.detach())
        count += float(b.weight.sum())
    grads = [p.grad for p in state.model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in grads])
    told = torch.tensor([total, count, float(sum(b.ids.numel() for b in parts)), *sums], dtype=torch.float64)
    dist.all_reduce(told)
    dist.all_reduce(flat)
    total, count, tokens, *summed = told.tolist()
    torch._foreach_copy_(
        grads, [f.view_as(g) for f, g in zip(flat.div_(count).split([g.numel() for g in grads]), grads, strict=True)]
    )
    torch.nn.utils.clip_grad_norm_(state.model.parameters(), 1.0)
    for optimizer in state.optimizers:
        optimizer.step()
    state.model.zero_grad(set_to_none=True)
    exchange(state.model)
    state.losses.append(total / count)
    state.tokens += int(tokens)
    return summed[0], summed[1]


@torch.no_grad()
def exchange(model: Nano) -> None:
    """Every process hears of the matrices the others have updated."""
    if dist.get_world_size() == 1:
        return
    for rank, matrices in enumerate(shares(model, dist.get_world_size())):
        flat = torch.cat([p.flatten() for p in matrices])
        dist.broadcast(flat, rank)
        if rank != dist.get_rank():
            torch._foreach_copy_(
                matrices, [f.view_as(p) for f, p in zip(flat.split([p.numel() for p in matrices]), matrices, strict=True)]
            )


def weights(right: dict[str, float], share: float) -> dict[str, float]:
    """How often each task is drawn: the worse it goes the oftener, the longer its dialogues the rarer."""
    early = {t: min(1.0, 0.1 + share / late) for t, late in LATE.items()}
    return {t: early.get(t, 1.0) * SHARE.get(t, 1.0) * (0.05 + 1 - a) ** 1.3 / LENGTH.get(t, 1.0) for t, a in right.items()}


def drill(right: dict[str, float], most: float) -> float:
    """The share of long copies: `most` at first, none once copying is learned."""
    return most * max(0.0, 1 - right["copy"] / 0.8)


def check(state: State, examples: dict[str, Any], device: torch.device, rank: int) -> None:
    """Accuracy on the validation split, smoothed over checks, and a line of the log."""
    state.model.eval()
    right = accuracy(state.model, examples, device)
    state.model.train()
    sums = torch.tensor([[right[t] * len(e), len(e)] for t, e in examples.items()], dtype=torch.float64)
    dist.all_reduce(sums)
    now = dict(zip(examples, (sums[:, 0] / sums[:, 1]).tolist(), strict=True))
    state.right = {t: 0.5 * state.right[t] + 0.5 * a for t, a in now.items()}
    mean = sum(now.values()) / len(now)
    table = " ".join(f"{t} {100 * a:.0f}" for t, a in sorted(now.items(), key=lambda i: i[1]))
    loss = statistics.mean(state.losses[-50:]) if state.losses else float("nan")
    rate = state.tokens / max(state.seconds, 1e-9)
    if rank:
        return
    print(
        f"{state.seconds / 60:.1f} min, step {state.step}, {state.tokens / 1e6:.2f} M tokens ({rate:.0f}/s), loss {loss:.4f}, "
        f"mean {100 * mean:.1f} %: {table}",
        flush=True,
    )


if __name__ == "__main__":
    main()
