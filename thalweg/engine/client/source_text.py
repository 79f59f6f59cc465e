"""Prompts of models with a text encoder: the source, and the first tokens of the answer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from thalweg.config import SourceConfig
from thalweg.engine.client.prompt_ids import check_ids
from thalweg.engine.client.transcription import NEVER
from thalweg.engine.messages import Input
from thalweg.errors import RequestError
from thalweg.params import SamplingParams
from thalweg.text.tokenizer import Tokenizer

DECODER, ENCODER = "decoder_prompt", "encoder_prompt"
MOST_A_STEP = 8
"""Most texts encoded in one step."""


class SourceReader:
    """Prompts of one model with a text encoder."""

    def __init__(self, config: SourceConfig, tokenizer: Tokenizer | None, vocab: int, context: int) -> None:
        """context: tokens of the decoder's context."""
        self._config, self._tokenizer, self._vocab, self._context = config, tokenizer, vocab, context

    def read(self, prompt: Any) -> tuple[Any, list[int]]:
        """(the source: a prompt of text or ids, the decoder's first tokens). A mapping may have "decoder_prompt", text or ids
        that follow the model's start token; else `generation_config.json` says what follows. RequestError names the field."""
        if not isinstance(prompt, Mapping):
            return prompt, [*self._config.start, *self._config.forced]
        fields = dict(prompt)
        if ENCODER in fields:
            source = fields.pop(ENCODER)
            fields = {**fields, **(source if isinstance(source, Mapping) else _as_prompt(ENCODER, source))}
        given = fields.pop(DECODER, None)
        if given is None:
            return fields, [*self._config.start, *self._config.forced]
        ids = self._decoder_ids(given)
        begin = list(self._config.start)
        ids = ids if ids[: len(begin)] == begin else begin + ids
        if len(ids) >= self._context:
            raise RequestError(
                f"{DECODER}: {len(ids)} tokens leave no room to answer in a context of {self._context} tokens; shorten it",
                DECODER,
            )
        return fields, ids

    def _decoder_ids(self, given: Any) -> list[int]:
        fields = given if isinstance(given, Mapping) else _as_prompt(DECODER, given)
        ids = fields.get("prompt_token_ids")
        if ids is None and isinstance(fields.get("prompt"), str):
            if self._tokenizer is None:
                raise RequestError(f"{DECODER}: this engine runs without a tokenizer; send token ids", DECODER)
            ids = self._tokenizer.encode(fields["prompt"], False)
        if not isinstance(ids, list) or not all(type(i) is int for i in ids):
            raise RequestError(f"{DECODER}: must be text or token ids", DECODER)
        check_ids(DECODER, ids, self._vocab)
        return list(ids)

    def shift(self, ids: Sequence[int]) -> list[int]:
        """The decoder's prompt, of a pooling model: the source shifted right, up to its last end token. RequestError without
        one."""
        end, first = self._config.end, self._config.start or ids[-1:]
        if end not in ids:
            raise RequestError(
                f"prompt: token {end}, which ends a text, is missing, and this model classifies its state there; add it "
                "behind the text, or leave add_special_tokens at true",
                "prompt",
            )
        return [*first, *ids[: len(ids) - 1 - ids[::-1].index(end)]]

    def check(self, params: SamplingParams) -> None:
        """RequestError for parameters that need a prompt of the decoder's own."""
        if params.prompt_logprobs is not None:
            raise RequestError(
                "prompt_logprobs: the prompt is read by this model's encoder, which gives no probabilities; omit it, "
                "and echo with logprobs",
                "prompt_logprobs",
            )

    def make_input(self, ids: Sequence[int], media: Sequence[Input] = ()) -> Input:
        """The source of cross attention: f32[rows, sources] with a row of token ids, which float32 holds exactly, and -1
        behind the last. media: at most one. Its array lies in further rows, and its placeholders before the text."""
        tokens, columns = np.array(ids, np.int32), self._config.tokens
        if media:
            shown = tokens == self._config.placeholder
            tokens = np.concatenate([tokens[shown], tokens[~shown]])
        rows = np.full((1, columns), -1, np.float32)
        rows[0, : len(tokens)] = tokens
        for each in media:
            values = each.data[0].reshape(-1)
            rows = np.concatenate([rows, np.pad(values, (0, -values.size % columns)).reshape(-1, columns)])
        named = b"source text" + tokens.tobytes() + b"".join(each.digest for each in media)
        digest = hashlib.blake2b(named, digest_size=24).digest()
        most = min([MOST_A_STEP, *(each.most_a_step for each in media)])
        return Input(kind="text", digest=digest, positions=np.zeros(0, np.int32), data=(rows,), most_a_step=most)

    def sampling(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Fields of TokenSampling, without the tokens that the model must not generate."""
        bias = dict(fields["logit_bias"]) | dict.fromkeys(self._config.suppress, NEVER)
        return {**fields, "logit_bias": tuple(sorted(bias.items()))}


def _as_prompt(name: str, given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        return {"prompt": given}
    if isinstance(given, list):
        return {"prompt_token_ids": given}
    raise RequestError(f"{name}: must be text or token ids, not {type(given).__name__}", name)
