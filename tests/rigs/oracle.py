"""The hash model said again, in Python integers and without cache, blocks or batches: what every request must produce."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

U64 = (1 << 64) - 1
A, B, C = 0x1E3779B97F4A7C15, 0x42B2AE3D27D4EB4F, 0x165667B19E3779F9


def splitmix(x: int) -> int:
    x &= U64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & U64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & U64
    return x ^ x >> 31


class Oracle:
    def __init__(self, salt: int, vocab: int, windows: Sequence[int] = (0,)) -> None:
        self.salt, self.vocab, self.windows = salt, vocab, windows

    def hashes(self, tokens: Iterable[int]) -> list[int]:
        """h(p) for every position."""
        out, h = [], 0
        for p, t in enumerate(tokens):
            h = (h + splitmix(t * A + p * B + self.salt)) & U64
            out.append(h)
        return out

    def pick(self, h: Sequence[int], total: int) -> int:
        """The next token after positions with hashes `h`, whose sum is `total`, if everything is allowed."""
        seen = sum(C ** (g + 1) * (sum(h[-w:]) if w > 0 else total) for g, w in enumerate(self.windows))
        return (splitmix(seen) >> 1) % self.vocab

    def generate(self, request, max_len: int) -> tuple[list[int], str, int]:
        """(output tokens from prompt_len on, finish reason, stop id) of an EngineRequest, by the rules of TokenSampling."""
        p = request.sampling
        tokens = [int(t) for t in request.tokens[: request.prompt_len]]
        given = [int(t) for t in request.tokens[request.prompt_len :]]
        h = self.hashes(tokens)
        total, out = sum(h), []
        stops = set(p.eos_ids) | set(p.stop_ids)
        while True:
            token = given[len(out)] if len(out) < len(given) else self.pick(h, total)
            banned = self.banned(p, tokens, len(out), stops)
            while token in banned:
                token = (token + 1) % self.vocab
            tokens.append(token)
            out.append(token)
            h.append(((h[-1] if h else 0) + splitmix(token * A + (len(tokens) - 1) * B + self.salt)) & U64)
            total += h[-1]
            if token in stops and len(out) >= p.min_tokens and len(out) > len(given):
                return out, "stop", -1 if token in p.eos_ids else token
            if len(out) >= p.max_tokens or len(tokens) >= max_len:
                return out, "length", -1

    def banned(self, p, tokens: list[int], count: int, stops: set[int]) -> set[int]:
        bad = {i for i, v in p.logit_bias if v == float("-inf")}
        if count < p.min_tokens:
            bad |= stops
        for w in p.bad_words:
            if len(w) == 1 or tuple(tokens[len(tokens) - len(w) + 1 :]) == tuple(w[:-1]):
                bad.add(w[-1])
        if p.allowed_ids:
            bad |= set(range(self.vocab)) - set(p.allowed_ids)
        return bad

    def value(self, h: int, token: int) -> float:
        """The log probability the null device reports for `token` after hash h."""
        return -((splitmix(h + token) & 0xFFFFF) / (1 << 20))


def expected(salt: int, tokens: Sequence[int], n: int, vocab: int = 256) -> list[int]:
    """The n tokens the hash model says after `tokens`, with one full KV group."""
    oracle, seq = Oracle(salt, vocab), list(tokens)
    for _ in range(n):
        h = oracle.hashes(seq)
        seq.append(oracle.pick(h, sum(h)))
    return seq[len(tokens) :]
