"""Trains the MTP module of thalweg-nano, the drafter in the package: one layer that predicts the token after next.

    python scripts/nano/head.py --out DIR [--minutes 12] [--steps N] [--rate 0.003] [--seed 1]

The model is frozen, and its distributions are the targets. Dialogues are those of its own training. Only predictions of the
assistant's tokens count. The module is unrolled: pass j + 1 reads the output of pass j and the keys and values that earlier
passes left, as it does when it drafts. A run of --steps is reproducible.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from batches import Batch, batches, draw
from check import rows
from dialogues import Dialogues
from export import block_state
from model import Block, Groups, Nano, normalise, rotate
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from train import SHAPES

from thalweg.checkpoint.hub import resolve_model
from thalweg.nano import TASKS

FILE = "model.safetensors"
LAYER = 3
"""The target's layer whose keys and values the module reads."""
PASSES = (1.0, 0.8, 0.64)
"""Weights of the losses of the unrolled passes."""
TOKENS, LONGEST = 1200, 400
"""Tokens of a step, and of its longest dialogue."""
WARM, FALL = 20, 0.5
"""Steps in which the rate rises, and the share of the run in which it falls to zero."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys and values, [tokens, heads, head_dim]: those of the target, or of a pass. Pass j lies 1 + j places later."""

    key: Tensor
    value: Tensor


class Head(nn.Module):
    """The module, under the names of DeepSeek V3's. Embedding and output matrix are those of the target. So are the keys and
    values of the text, those of its layer LAYER: prompts cost the module nothing."""

    def __init__(self, target: Nano) -> None:
        super().__init__()
        s = self.s = target.s
        self.enorm, self.hnorm, self.norm = (nn.Parameter(torch.ones(s.hidden)) for _ in range(3))
        self.proj = nn.Linear(2 * s.hidden, s.hidden, bias=False)
        self.block = Block(s)
        self.block.load_state_dict(target.blocks[LAYER].state_dict())

    def forward(self, embedded: Tensor, hidden: Tensor, at: tuple[Tensor, Tensor], groups: Groups, held: list[Keys]) -> Tensor:
        """The pass after those in `held`, to which it adds its own. held begins with the target's. embedded, hidden
        [tokens, width]: of the next token, and what the target or the pass before made of the tokens up to it. at: cos and sin
        of the next tokens' positions."""
        eps, block, s = self.s.eps, self.block, self.s
        x = self.proj(torch.cat((normalise(embedded, self.enorm, eps), normalise(hidden, self.hnorm, eps)), -1))
        attention = block.attention
        q, k, v = (
            z.view(len(x), -1, s.head_dim) for z in attention.qkv(normalise(x, block.norm1, eps)).split(attention.split, -1)
        )
        q = rotate(normalise(q, attention.q_norm, eps), *at).to(v.dtype)
        k = rotate(normalise(k, attention.k_norm, eps), *at).to(v.dtype)
        repeat = s.heads // s.kv_heads
        held.append(Keys(k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)))
        x = x + attention.out(_attend(q, held, groups))
        gate, up = block.up(normalise(x, block.norm2, eps)).chunk(2, -1)
        return normalise(x + block.down(F.silu(gate) * up), self.norm, eps)


def _attend(q: Tensor, held: list[Keys], groups: Groups) -> Tensor:
    """[tokens, heads * head_dim]. Place i sees entries 0 to i of the target, and entry i of each pass."""
    out, at, scale = [], 0, q.shape[-1] ** -0.5
    for texts, length in groups:
        here = slice(at, at + texts * length)
        at += texts * length

        def shape(x: Tensor, here: slice = here, texts: int = texts, length: int = length) -> Tensor:
            return x[here].view(texts, length, -1, q.shape[-1]).transpose(1, 2)

        own, first = shape(q) * scale, held[0]
        later = torch.full((length, length), float("-inf"), dtype=q.dtype).triu(1)
        scores = [own @ shape(first.key).transpose(-1, -2) + later]
        scores += [(own * shape(more.key)).sum(-1, keepdim=True) for more in held[1:]]
        weights = torch.cat(scores, -1).softmax(-1, dtype=torch.float32).to(q.dtype)
        y = weights[..., :length] @ shape(first.value)
        for j, more in enumerate(held[1:]):
            y = y + weights[..., length + j, None] * shape(more.value)
        out.append(y.transpose(1, 2).reshape(texts * length, -1))
    return torch.cat(out)


@torch.no_grad()
def run_target(target: Nano, batch: Batch, at: tuple[Tensor, Tensor]) -> tuple[Tensor, Keys]:
    """Its hidden states after the last norm, and the keys and values of LAYER. at: cos and sin of the places."""
    s, x = target.s, target.embed(batch.ids)
    for i, block in enumerate(target.blocks):
        if i == LAYER:
            attention = block.attention
            qkv = attention.qkv(normalise(x, block.norm1, s.eps)).split(attention.split, -1)
            k, v = (z.view(len(x), -1, s.head_dim) for z in qkv[1:])
            k = rotate(normalise(k, attention.k_norm, s.eps), *at).to(v.dtype)
            keys = Keys(*(z.repeat_interleave(s.heads // s.kv_heads, 1) for z in (k, v)))
        x = block(x, *at, batch.groups)
    return normalise(x, target.norm, s.eps), keys


def unroll(head: Head, target: Nano, batch: Batch) -> list[tuple[Tensor, Tensor]]:
    """For each pass, of the places whose prediction the assistant writes: logits [n, vocab], and those of the target. Pass j at
    place i predicts the token j + 2 places later."""
    ids, groups = batch.ids, batch.groups
    places = torch.cat([torch.arange(length).repeat(texts) for texts, length in groups])
    ends = torch.cat([torch.full((texts * length,), length) for texts, length in groups])
    hidden, keys = run_target(target, batch, (target.cos[places], target.sin[places]))
    held, found, x = [keys], [], hidden
    for j in range(len(PASSES)):
        angles = target.cos[places + 1 + j], target.sin[places + 1 + j]
        x = head(target.embed(ids.roll(-1 - j)).detach(), x, angles, groups, held)
        here = (batch.own.roll(-1 - j)) & (places + 1 + j < ends)
        with torch.no_grad():
            wanted = target.logits(hidden.roll(-1 - j, 0)[here])
        found.append((target.logits(x[here]), wanted))
    return found


def loss_of(head: Head, target: Nano, batch: Batch) -> Tensor:
    """The sum over passes of the cross entropies with the target's distributions."""
    total = torch.zeros(())
    for share, (logits, wanted) in zip(PASSES, unroll(head, target, batch), strict=True):
        total = total + share * F.cross_entropy(logits.float(), wanted.float().softmax(-1))
    return total


@torch.no_grad()
def acceptance(head: Head, target: Nano, some: list[Batch]) -> list[float]:
    """Per pass: how often its likeliest token is the target's. All read the text, and not their own drafts."""
    right = torch.zeros(len(PASSES), 2)
    for batch in some:
        with torch.autocast("cpu", torch.bfloat16):
            for j, (logits, wanted) in enumerate(unroll(head, target, batch)):
                hits = logits.argmax(-1) == wanted.argmax(-1)
                right[j] += torch.tensor([float(hits.sum()), float(hits.numel())])
    return (right[:, 0] / right[:, 1]).tolist()


def load_target(path: Path) -> Nano:
    """The model of a checkpoint of `train.py`, frozen."""
    weights = load_file(path / "model.safetensors")
    model = Nano(SHAPES["nano"])
    state = {"embed.weight": weights["model.embed_tokens.weight"], "norm": weights["model.norm.weight"]}
    for i in range(model.s.layers):
        state |= {f"blocks.{i}.{name}": value for name, value in _block(weights, f"model.layers.{i}.").items()}
    model.load_state_dict({name: value.float() for name, value in state.items()})
    return model.requires_grad_(False).eval()


def _block(weights: Mapping[str, Tensor], at: str) -> dict[str, Tensor]:
    """A layer of a checkpoint, under the names of `model.Block`."""
    attention, mlp = f"{at}self_attn.", f"{at}mlp."
    return {
        "norm1": weights[f"{at}input_layernorm.weight"], "norm2": weights[f"{at}post_attention_layernorm.weight"],
        "attention.qkv.weight": torch.cat([weights[f"{attention}{n}_proj.weight"] for n in "qkv"]),
        "attention.out.weight": weights[f"{attention}o_proj.weight"],
        "attention.q_norm": weights[f"{attention}q_norm.weight"], "attention.k_norm": weights[f"{attention}k_norm.weight"],
        "up.weight": torch.cat([weights[f"{mlp}{n}_proj.weight"] for n in ("gate", "up")]),
        "down.weight": weights[f"{mlp}down_proj.weight"],
    }  # fmt: skip


def save(head: Head, out: Path) -> None:
    """In bfloat16, under the names of the layer after the target's last."""
    at = f"model.layers.{head.s.layers}."
    state = {
        f"{at}enorm.weight": head.enorm, f"{at}hnorm.weight": head.hnorm, f"{at}eh_proj.weight": head.proj.weight,
        f"{at}shared_head.norm.weight": head.norm, **block_state(head.block, at, head.s),
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    made = {name: t.detach().to(torch.bfloat16).contiguous().clone() for name, t in sorted(state.items())}
    save_file(made, out / FILE, metadata={"format": "pt"})
    (out / FILE).chmod(0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument("--steps", type=int, help="rather than minutes")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    path = resolve_model("thalweg-nano")
    tokenizer, target = Tokenizer.from_file(str(path / "tokenizer.json")), load_target(path)
    head = Head(target)
    with torch.no_grad():
        head.proj.weight.normal_(std=0.5 / (2 * target.s.hidden) ** 0.5)
    held_out = rows(tokenizer, "validation", 4)
    some = batches([row for task in held_out.values() for row in task if len(row[0]) <= LONGEST], 4096)
    losses = train(head, target, Dialogues(dict.fromkeys(TASKS, 1.0), args.seed), tokenizer, args, some)
    save(head, args.out)
    print(f"{len(losses)} steps, loss {losses[0]:.3f} at first and {sum(losses[-20:]) / len(losses[-20:]):.3f} at last")
    print("acceptance by pass: " + ", ".join(f"{share:.3f}" for share in acceptance(head, target, some)))


def train(
    head: Head, target: Nano, source: Dialogues, tokenizer: Tokenizer, args: argparse.Namespace, some: list[Batch]
) -> list[float]:
    """The loss of each step."""
    optimizer = torch.optim.AdamW(head.parameters(), lr=args.rate, betas=(0.9, 0.95), weight_decay=0.0)
    begin, losses = time.monotonic(), list[float]()
    while True:
        done = len(losses) / args.steps if args.steps else (time.monotonic() - begin) / (60 * args.minutes)
        if done >= 1:
            return losses
        for group in optimizer.param_groups:
            group["lr"] = args.rate * min(1.0, (len(losses) + 1) / WARM, (1 - done) / FALL)
        (batch,) = islice(batches(draw(source, tokenizer, TOKENS, LONGEST), 1 << 30), 1)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(head, target, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if len(losses) % 100 == 0:
            shares = ", ".join(f"{share:.3f}" for share in acceptance(head, target, some))
            mean = sum(losses[-50:]) / 50
            print(f"{time.monotonic() - begin:.0f} s, step {len(losses)}, loss {mean:.3f}: {shares}", flush=True)


if __name__ == "__main__":
    main()
