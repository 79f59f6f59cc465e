"""A stand-in for AsyncLLM over a model that hears, with answers anyone can tell: what it "hears" is how loud a window is."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from fake_engine import FakeEngine, config, logprobs
from whisper_zoo import BINS, DE, EN, END, SOURCES, TIMES, make_tokenizer

from thalweg.config import SpeechConfig
from thalweg.outputs import CompletionOutput, RequestMetrics, RequestOutput
from thalweg.params import RequestOutputKind, SamplingParams
from thalweg.text.tokenizer import load_tokenizer


class FakeRecognizer(FakeEngine):
    """Every window is " a bc", with times from 0 to 0.2 and from 0.4 on. What is silent is in German."""

    def __init__(self, *, multilingual: bool = True, delay: float = 0.0, heads: int = 2) -> None:
        super().__init__(delay=delay)
        self.scored: list[Any] = []
        """Prompts whose log-probabilities were asked for."""
        self.aligned = list[list[int]]()
        """Tokens whose weights of cross attention were requested: token i attends to frames 5i to 5i + 4."""
        self.stops = 0
        """So many of the next answers with times stop after " a", at 0.3, where another piece begins."""
        with tempfile.TemporaryDirectory() as folder:
            make_tokenizer(Path(folder))
            self.tokenizer = load_tokenizer(Path(folder))  # type: ignore[assignment]
        base = config()
        sound = SpeechConfig(bins=BINS, frames=2 * SOURCES, multilingual=multilingual, heads=heads)
        model = msgspec.structs.replace(base.model, speech=sound, max_len=64, vocab=self.tokenizer.vocab_size)
        self.config = msgspec.structs.replace(base, model=model)

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        first_choice: int = 0,
        seat: Any = None,
        lora_request: Any = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        p, mel = sampling_params, prompt["multi_modal_data"]["audio"].values
        assert mel.shape == (BINS, 2 * SOURCES)
        if "alignment" not in (p.extra_args or {}):
            (self.prompts if p.prompt_logprobs is None else self.scored).append(prompt)
        self.running[request_id] = p
        self.most_running = max(self.most_running, len(self.running))
        assert self.tokenizer is not None
        words = self.tokenizer.encode(" a bc")
        known = alignment = None
        if "alignment" in (p.extra_args or {}):
            rows = prompt["prompt_token_ids"][p.extra_args["alignment"] :]
            self.aligned.append(rows)
            seen = np.repeat(np.eye(len(rows), SOURCES // 5, dtype=np.float32), 5, 1)
            alignment, tokens = np.tile(seen, 2), [END]
        elif p.prompt_logprobs is not None:
            known, tokens = [None, *(logprobs(t, 0) for t in prompt["prompt_token_ids"][1:])], [END]
        elif p.allowed_token_ids:
            tokens = [DE if mel.std() == 0 else EN]
        elif p.extra_args:
            tokens = [TIMES, *words[:2], TIMES + 10, TIMES + 20, *words[2:], END]
            if self.stops:
                self.stops -= 1
                tokens = [TIMES, *words[:2], TIMES + 15, TIMES + 15, END]
        else:
            tokens = [*words, END]
        try:
            pieces = [[t] for t in tokens] if p.output_kind is RequestOutputKind.DELTA else [tokens]
            for i, piece in enumerate(pieces):
                await asyncio.sleep(self.delay * (1 + len(self.prompts) % 3))
                last = i == len(pieces) - 1
                choice = CompletionOutput(
                    index=0, text=self.tokenizer.decode(piece), token_ids=piece, finish_reason="stop" if last else None,
                    logprobs=None if p.logprobs is None else [logprobs(t, 0) for t in piece], stop_reason=None,
                )  # fmt: skip
                output = RequestOutput(
                    request_id, None, prompt["prompt_token_ids"], known, [choice], last,
                    metrics=RequestMetrics(1.0, 1.0, 1.5, 2.0, 3.0, 1, 1), num_cached_tokens=0, alignment=alignment,
                )  # fmt: skip
                if last:
                    for logger in self.loggers:
                        logger.record_request(output, p)
                yield output
        finally:
            del self.running[request_id]
