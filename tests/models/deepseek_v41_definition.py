"""DeepSeek V4.1's text part as its publisher defines it, in plain operations over the tensors of a checkpoint and a whole
sequence. Tiny models for it, with the names and settings of published files. `nemo` is the same by NeMo AutoModel, where it is
installed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models
from torch import Tensor

VOCAB = 96
TEXT: dict[str, Any] = {
    "model_type": "deepseek_v41_text", "vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 8,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 48, "qk_rope_head_dim": 16, "q_lora_rank": 40,
    "o_groups": 2, "o_lora_rank": 20, "moe_intermediate_size": 24, "n_routed_experts": 6, "num_experts_per_tok": 3,
    "n_shared_experts": 1, "routed_scaling_factor": 1.5, "norm_topk_prob": True, "scoring_func": "sqrtsoftplus",
    "swiglu_limit": 1.5, "sliding_window": 9, "rms_norm_eps": 1e-20, "rope_theta": 10000.0, "compress_rope_theta": 160000.0,
    "rope_scaling": {
        "type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1,
    },
    "compress_ratios": [0, 2, 2, 2, 1, 1, 1, 1, 0], "kv_source_layer_ids": [1, 3, 4],
    "index_source_layer_ids": [1, 3, 4, 6, 7], "candidate_source_layer_id": 4, "candidate_topk_blocks": 3,
    "candidate_block_size": 2, "index_n_heads": 32, "index_head_dim": 32, "index_topk": 4, "hc_mult": 3,
    "hc_sinkhorn_iters": 5, "hc_eps": 1e-6, "engram_layer_ids": [0, 3], "engram_num_embeddings": [260, 416],
    "engram_max_ngram_size": 4, "engram_vocab_size": 30, "engram_n_heads": 2, "engram_head_dim": 16, "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 70, "max_position_embeddings": 256, "tie_word_embeddings": False, "eos_token_id": 95,
    "num_nextn_predict_layers": 1,
}  # fmt: skip
CHANGES: dict[str, dict[str, Any]] = {
    "whole": {},
    "one-level": {"candidate_source_layer_id": -1, "engram_layer_ids": [2], "engram_num_embeddings": [300], "hc_mult": 2},
    "derived": {
        "compress_ratios": None, "kv_source_layer_ids": None, "index_source_layer_ids": None, "engram_layer_ids": [],
        "engram_num_embeddings": [], "num_hidden_layers": 6, "candidate_source_layer_id": None, "rope_scaling": None,
    },
}  # fmt: skip
SEEDS = {"whole": 5, "one-level": 9, "derived": 1}
"""Of weights with which no rounded value of the tests is near the middle of two codes, where a last bit decides."""


def complete(c: Mapping[str, Any]) -> dict[str, Any]:
    """With what the configuration class derives of a number of layers."""
    c = dict(c)
    if c["compress_ratios"] is None:
        c |= {"compress_ratios": [0, 0, 2, 2, 1, 1, 0], "kv_source_layer_ids": [2, 4], "index_source_layer_ids": [2, 4]}
        c |= {"candidate_source_layer_id": 4}
    c["rope_scaling"] = c["rope_scaling"] or {
        "type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1,
    }  # fmt: skip
    return c


def write_tokenizer(path: Path) -> None:
    """96 tokens, of which some differ by case, accents and spaces only."""
    words = [" ", "  ", "\t", "é", "e", "E", "É", *(chr(ord("a") + i) for i in range(5, 26)), *map(chr, range(65, 91))]
    words += [str(i) for i in range(VOCAB)]
    vocab = {word: i for i, word in enumerate(dict.fromkeys(words)) if i < VOCAB}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="e"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(path / "tokenizer.json"))


def shapes(c: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names of tensors and their shapes."""
    hidden, n, dim, index = c["hidden_size"], c["hc_mult"], c["head_dim"], c["index_head_dim"]
    out = {"embed.weight": (VOCAB, hidden), "head.weight": (VOCAB, hidden), "norm.weight": (hidden,)}
    for i in range(c["num_hidden_layers"]):
        at, own, rate = f"layers.{i}.", f"layers.{i}.attn.", c["compress_ratios"][i]
        for part in ("attn", "ffn"):
            out |= {f"{at}{part}_norm.weight": (hidden,), f"{at}hc_{part}_fn": ((2 + n) * n, n * hidden)}
            out |= {f"{at}hc_{part}_base": ((2 + n) * n,), f"{at}hc_{part}_scale": (3,)}
        groups, heads = c["o_groups"], c["num_attention_heads"]
        out |= {f"{own}wq_a.weight": (c["q_lora_rank"], hidden), f"{own}q_norm.weight": (c["q_lora_rank"],),
                f"{own}wq_b.weight": (heads * dim, c["q_lora_rank"]), f"{own}wkv.weight": (dim, hidden),
                f"{own}kv_norm.weight": (dim,), f"{own}attn_sink": (heads,),
                f"{own}wo_a.weight": (groups * c["o_lora_rank"], heads * dim // groups),
                f"{own}wo_b.weight": (hidden, groups * c["o_lora_rank"])}  # fmt: skip
        if i in c["kv_source_layer_ids"]:
            out |= {f"{own}compressor.wkv.weight": (dim, hidden), f"{own}compressor.norm.weight": (dim,),
                    f"{own}indexer.wk.weight": (index, dim), f"{own}indexer.k_norm.weight": (index,)}  # fmt: skip
            if rate > 1:
                out[f"{own}compressor.wgate.weight"] = (dim, hidden)
        if i in c["index_source_layer_ids"]:
            out |= {f"{own}indexer.wq_b.weight": (c["index_n_heads"] * index, c["q_lora_rank"]),
                    f"{own}indexer.weights_proj.weight": (c["index_n_heads"], hidden)}  # fmt: skip
        if i in c["engram_layer_ids"]:
            wide = (c["engram_max_ngram_size"] - 1) * c["engram_n_heads"] * c["engram_head_dim"]
            rows = c["engram_num_embeddings"][c["engram_layer_ids"].index(i)]
            out |= {f"{at}engram.embed.weight": (rows, c["engram_head_dim"]),
                    f"{at}engram.wkv.weight": ((n + 1) * hidden, wide), f"{at}engram.q_weight": (n, hidden),
                    f"{at}engram.k_weight": (n, hidden)}  # fmt: skip
        moe = f"{at}ffn."
        out |= {f"{moe}gate.weight": (c["n_routed_experts"], hidden), f"{moe}gate.bias": (c["n_routed_experts"],)}
        out[f"{moe}gate.bias_vl"] = (c["n_routed_experts"],)
        for each in (*(f"experts.{e}" for e in range(c["n_routed_experts"])), "shared_experts"):
            inner = c["moe_intermediate_size"]
            out |= {f"{moe}{each}.w1.weight": (inner, hidden), f"{moe}{each}.w3.weight": (inner, hidden),
                    f"{moe}{each}.w2.weight": (hidden, inner)}  # fmt: skip
    return out


def draw(c: Mapping[str, Any], seed: int) -> dict[str, Tensor]:
    g, out = torch.Generator().manual_seed(seed), {}
    for name, shape in shapes(complete(c)).items():
        if "norm" in name or name.endswith(("q_weight", "k_weight", "_scale")):
            out[name] = 1 + torch.empty(shape).normal_(0, 0.2, generator=g)
        elif name.endswith((".bias", "bias_vl")):
            out[name] = torch.empty(shape).uniform_(0, 0.6, generator=g)
        elif name.endswith(("attn_sink", "_base")):
            out[name] = torch.empty(shape).normal_(0, 0.7, generator=g)
        elif name.endswith(("embed.weight", "head.weight")):
            out[name] = torch.empty(shape).normal_(0, 0.25, generator=g)
        else:
            out[name] = torch.empty(shape).normal_(0, (3 if ".gate." in name else 0.8) / shape[-1] ** 0.5, generator=g)
    return out


def write(path: Path, change: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration of the text part, and the tensors, of a checkpoint in `path`."""
    config = {**TEXT, **CHANGES[change]}
    drawn = draw(config, SEEDS[change])
    save(path, config, drawn)
    return config, drawn


def save(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], **more: Any) -> None:
    """more: of the whole model's configuration."""
    path.mkdir(parents=True, exist_ok=True)
    text = {key: value for key, value in config.items() if value is not None}
    whole = {"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "text_config": text, **more}
    (path / "config.json").write_text(json.dumps({**whole, "dtype": "float32"}))
    write_tokenizer(path)
    save_file({name: t.contiguous() for name, t in tensors.items()}, path / "model.safetensors", {"format": "pt"})


LEVELS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def round_by(x: Tensor, size: int, top: float, least: float, power: bool) -> Tensor:
    """x [..., D] in groups with a scale each, as `nvfp4` (no power), `mxfp4` (6) or float8 (448)."""
    parts = F.pad(x.float(), (0, -x.shape[-1] % size)).unflatten(-1, (-1, size))
    largest = parts.abs().amax(-1, keepdim=True).clamp(min=least)
    if power:
        fraction, exponent = np.frexp((largest * (1 / top)).numpy())
        scale = torch.from_numpy(np.ldexp(np.float32(1), exponent - (fraction == 0.5)))
    else:
        scale = (largest / top).to(torch.float8_e4m3fn).float()
    values = parts / scale
    if top == 448:
        values = values.clamp(-top, top).to(torch.float8_e4m3fn).float()
    else:
        distance = (values.abs().clamp(max=6)[..., None] - LEVELS).abs()
        near = distance <= distance.amin(-1, keepdim=True)  # two in the middle, of which the even code counts
        code = torch.where(near, torch.tensor([0, 2, 4, 6, 1, 3, 5, 7]).argsort(), 99).argmin(-1)
        values = LEVELS[code] * values.sign()
    return (values * scale).flatten(-2)[..., : x.shape[-1]].to(x.dtype)


def primes(least: int, many: int) -> list[int]:
    return list(islice((n for n in count(least) if n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))), many))


class Definition:
    """Token ids -> logits [T, vocab]."""

    def __init__(self, c: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.c, self.t = complete(c), {name: t.double() for name, t in tensors.items()}

    def __call__(self, ids: list[int]) -> Tensor:
        c, self.shared = self.c, {}
        x = self.t["embed.weight"][ids][:, None].expand(-1, c["hc_mult"], -1)
        pre = torch.zeros(len(ids), c["hc_mult"], dtype=torch.float64)
        pre[:, 0] = 1
        for i in range(c["num_hidden_layers"]):
            at = f"layers.{i}."
            if i in c["engram_layer_ids"]:
                x = x + self.memory(x, ids, i)
            for part, run in (("attn", self.attend), ("ffn", self.mix)):
                new, post, comb = self.mixing(x, f"{at}hc_{part}_")
                entered = self.norm((pre[..., None] * x).sum(1), f"{at}{part}_norm")
                y = run(entered, i)
                x = post[..., None] * y[:, None] + torch.einsum("tjk,tjd->tkd", comb, x)
                pre = new
        return self.norm((pre[..., None] * x).sum(1), "norm") @ self.t["head.weight"].T

    def norm(self, x: Tensor, name: str = "") -> Tensor:
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.c["rms_norm_eps"])
        return y * self.t[f"{name}.weight"] if name else y

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.t[f"{name}.weight"].T

    def mixing(self, x: Tensor, at: str) -> tuple[Tensor, Tensor, Tensor]:
        n, e = self.c["hc_mult"], self.c["hc_eps"]
        scale = self.t[f"{at}scale"].repeat_interleave(torch.tensor([n, n, n * n]))
        logits = self.norm(x.flatten(1)) @ self.t[f"{at}fn"].T * scale + self.t[f"{at}base"]
        comb = torch.softmax(logits[:, 2 * n :].view(-1, n, n), -1) + e
        comb = comb / (comb.sum(1, keepdim=True) + e)
        for _ in range(self.c["hc_sinkhorn_iters"] - 1):
            comb = comb / (comb.sum(2, keepdim=True) + e)
            comb = comb / (comb.sum(1, keepdim=True) + e)
        return torch.sigmoid(logits[:, :n]) + e, 2 * torch.sigmoid(logits[:, n : 2 * n]), comb

    def memory(self, x: Tensor, ids: list[int], layer: int) -> Tensor:
        c, index, at = self.c, self.c["engram_layer_ids"].index(layer), f"layers.{layer}.engram."
        size, heads = c["engram_max_ngram_size"], c["engram_n_heads"]
        merged = merge()
        most = (2**63 - 1) // len({*merged}) // 2
        by = np.random.default_rng(10007 * layer).integers(0, most, size=size, dtype=np.int64) * 2 + 1
        rows = primes(c["engram_vocab_size"], heads * (size - 1) * (index + 1))[heads * (size - 1) * index :]
        found = []
        for t in range(len(ids)):
            mixed, at_row = int(by[0]) * merged[ids[t]], 0
            for back in range(1, size):
                token = merged[ids[t - back]] if t >= back else merged[c["engram_pad_token_id"]]
                mixed ^= int(by[back]) * token
                for h in range(heads):
                    number = (back - 1) * heads + h
                    found.append(at_row + mixed % rows[number])
                    at_row += rows[number]
        both = self.linear(self.t[f"{at}embed.weight"][found].reshape(len(ids), -1), f"{at}wkv")
        key, value = both[:, : -c["hidden_size"]].view(x.shape), both[:, -c["hidden_size"] :]
        gate = (self.norm(x) * self.t[f"{at}q_weight"] * self.t[f"{at}k_weight"] * self.norm(key)).sum(-1, keepdim=True)
        gate = gate * c["hidden_size"] ** -0.5
        return torch.sigmoid(torch.copysign(gate.abs().clamp(min=1e-6).sqrt(), gate)) * value[:, None]

    def turn(self, x: Tensor, positions: Tensor, compressed: bool, back: bool = False) -> Tensor:
        """The last values of x [T, ..., D], in pairs."""
        c, dim = self.c, self.c["qk_rope_head_dim"]
        theta = c["compress_rope_theta"] if compressed else c["rope_theta"]
        rates = theta ** -(torch.arange(0, dim, 2).double() / dim)
        if compressed:
            said = c["rope_scaling"]
            low, high = (
                dim * np.log(said["original_max_position_embeddings"] / (turns * 2 * np.pi)) / (2 * np.log(theta))
                for turns in (said["beta_fast"], said["beta_slow"])
            )
            low, high = max(int(np.floor(low)), 0), min(int(np.ceil(high)), dim - 1)
            ramp = ((torch.arange(dim // 2) - low) / max(high - low, 1e-3)).clamp(0, 1)
            rates = rates / said["factor"] * ramp + rates * (1 - ramp)
        angle = positions.double()[:, None] * rates * (-1 if back else 1)
        angle = angle.view(len(x), *[1] * (x.ndim - 2), dim // 2)
        first, second = x[..., -dim::2], x[..., -dim + 1 :: 2]
        turned = first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()
        return torch.cat([x[..., :-dim], torch.stack(turned, -1).flatten(-2)], -1)

    def attend(self, x: Tensor, layer: int) -> Tensor:
        c, at, length = self.c, f"layers.{layer}.attn.", len(x)
        rate, heads = c["compress_ratios"][layer], c["num_attention_heads"]
        here = torch.arange(length)
        latent = self.norm(self.linear(x, f"{at}wq_a"), f"{at}q_norm")
        q = self.turn(self.linear(latent, f"{at}wq_b").unflatten(-1, (heads, -1)), here, rate > 0)
        keys = self.turn(self.norm(self.linear(x, f"{at}wkv"), f"{at}kv_norm"), here, rate > 0)
        keys, seen = round_by(keys, 32, 448, 1e-4, True), (here <= here[:, None]) & (here > here[:, None] - c["sliding_window"])
        if rate:
            entries, chosen = self.select(x, latent, layer)
            keys, seen = torch.cat([keys, entries]), torch.cat([seen, chosen], 1)
        scores = torch.einsum("thd,kd->htk", q, keys) * c["head_dim"] ** -0.5
        scores = scores.masked_fill(~seen, -torch.inf)
        sink = self.t[f"{at}attn_sink"][:, None, None].expand(-1, length, 1)
        weights = torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]
        out = self.turn(torch.einsum("htk,kd->thd", weights, keys), here, rate > 0, back=True)
        grouped = out.reshape(length, c["o_groups"], -1)
        low = self.t[f"{at}wo_a.weight"].view(c["o_groups"], c["o_lora_rank"], -1)
        return self.linear(torch.einsum("tgi,goi->tgo", grouped, low).flatten(1), f"{at}wo_b")

    def select(self, x: Tensor, latent: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Entries, and bool[T, entries]: which each token reads."""
        c, at, rate, kept = self.c, f"layers.{layer}.attn.", self.c["compress_ratios"][layer], self.shared
        if layer in c["kv_source_layer_ids"]:
            whole = len(x) // rate
            entry = self.linear(x[: whole * rate], f"{at}compressor.wkv")
            if rate > 1:
                gate = self.linear(x[: whole * rate], f"{at}compressor.wgate").unflatten(0, (whole, rate)).softmax(1)
                entry = (entry.unflatten(0, (whole, rate)) * gate).sum(1)
            entry, at_token = self.norm(entry, f"{at}compressor.norm"), torch.arange(whole) * rate
            key = self.norm(self.linear(entry, f"{at}indexer.wk"), f"{at}indexer.k_norm")
            kept["entries"] = round_by(self.turn(entry, at_token, True), 16, 6, 6 * 2.0**-9, False)
            kept["keys"] = round_by(self.turn(key, at_token, True), 32, 6, 6 * 2.0**-126, True)
        if layer in c["index_source_layer_ids"]:
            kept["chosen"] = self.index(x, latent, layer)
        return kept["entries"], kept["chosen"]

    def index(self, x: Tensor, latent: Tensor, layer: int) -> Tensor:
        c, at, kept, keys = self.c, f"layers.{layer}.attn.indexer.", self.shared, self.shared["keys"]
        here, heads = torch.arange(len(x)), c["index_n_heads"]
        q = self.turn(self.linear(latent, f"{at}wq_b").unflatten(-1, (heads, -1)), here, True)
        q = round_by(q, 32, 6, 6 * 2.0**-126, True)
        weights = self.linear(x, f"{at}weights_proj") * (heads * c["index_head_dim"]) ** -0.5
        score = (torch.einsum("thd,kd->thk", q, keys).relu() * weights[..., None]).sum(1)
        visible = ((here + 1) // c["compress_ratios"][layer])[:, None]
        allowed = torch.arange(len(keys)) < visible
        source = c["candidate_source_layer_id"]
        if layer > source >= 0:
            allowed = allowed & kept["blocks"]
        score = score.masked_fill(~allowed, -torch.inf)
        if layer == source:
            size = c["candidate_block_size"]
            best = F.pad(score, (0, -len(keys) % size), value=-torch.inf).unflatten(1, (-1, size)).amax(-1)
            best[torch.arange(best.shape[1]) == (visible - 1) // size] = torch.inf
            kept["blocks"] = take(best, c["candidate_topk_blocks"]).repeat_interleave(size, 1)[:, : len(keys)]
        return take(score, c["index_topk"])

    def mix(self, x: Tensor, layer: int) -> Tensor:
        c, at = self.c, f"layers.{layer}.ffn."
        scores = F.softplus(self.linear(x, f"{at}gate")).sqrt()
        chosen = (scores + self.t[f"{at}gate.bias"]).topk(c["num_experts_per_tok"], -1)[1]
        weights = scores.gather(1, chosen)
        weights = weights / weights.sum(-1, keepdim=True) * c["routed_scaling_factor"]
        each = torch.stack([self.gate_mlp(x, f"{at}experts.{e}.") for e in range(c["n_routed_experts"])], 1)
        y = (each.gather(1, chosen[..., None].expand(-1, -1, x.shape[-1])) * weights[..., None]).sum(1)
        return y + self.gate_mlp(x, f"{at}shared_experts.")

    def gate_mlp(self, x: Tensor, at: str) -> Tensor:
        most = self.c["swiglu_limit"]
        gate, up = self.linear(x, f"{at}w1").clamp(max=most), self.linear(x, f"{at}w3").clamp(-most, most)
        return self.linear(F.silu(gate) * up, f"{at}w2")


def take(score: Tensor, top: int) -> Tensor:
    """bool of score's shape: the largest of each row, without those of -inf."""
    best = score.topk(min(top, score.shape[1]), -1)
    return torch.zeros_like(score, dtype=torch.bool).scatter(1, best.indices, best.values > -torch.inf)


def merge() -> list[int]:
    """The merged id of each token of `write_tokenizer`: case and accents count for nothing, and all spaces are one."""
    names = [" ", "  ", "\t", "é", "e", "E", "É", *(chr(ord("a") + i) for i in range(5, 26)), *map(chr, range(65, 91))]
    names = list(dict.fromkeys([*names, *(str(i) for i in range(VOCAB))]))[:VOCAB]
    known: dict[str, int] = {}
    return [known.setdefault(" " if not n.strip() else n.lower().replace("é", "e"), len(known)) for n in names]


def nemo(c: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> Callable[[list[int]], Tensor]:
    """The definition of NeMo AutoModel. path: of a checkpoint with the tokenizer."""
    from nemo_automodel.components.models.common import BackendConfig  # type: ignore[import-not-found]
    from nemo_automodel.components.models.deepseek_v41.config import DeepseekV41Config  # type: ignore[import-not-found]
    from nemo_automodel.components.models.deepseek_v41.model import DeepseekV41ForCausalLM  # type: ignore[import-not-found]
    from transformers import PreTrainedTokenizerFast

    config = DeepseekV41Config(text_config={**complete(c), "dtype": "float32"}, vision_config={"num_hidden_layers": 0})
    backend = BackendConfig(attn="eager", linear="torch", rms_norm="torch_fp32", experts="torch", dispatcher="torch")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))
    model = DeepseekV41ForCausalLM(config, backend=backend, tokenizer=tokenizer)
    loaded = model.state_dict_adapter.from_hf({name: t.clone() for name, t in tensors.items()})
    model.load_state_dict(loaded, strict=True)
    model = model.float().eval()

    def run(ids: list[int]) -> Tensor:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            return model(torch.tensor([ids])).logits[0].double()

    return run
