"""A group in which tokens attend to their own chunk of `window` tokens (Llama 4): with the first token of a chunk, all blocks
of those before it are dropped. Everything else is as for a window."""

from __future__ import annotations

from thalweg.engine.control.cache.groups.window import Window


class Chunked(Window):
    def first_needed(self, computed: int) -> int:
        return computed // self.spec.window * self.spec.window // self.spec.block_tokens
