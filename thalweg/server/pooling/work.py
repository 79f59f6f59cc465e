"""Prompts of one request to a pooling model: reading, running and answering. Shared by every route of this dialect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import orjson
from starlette.requests import Request as Http
from starlette.responses import Response

from thalweg.engine.client.media import MEDIA
from thalweg.engine.client.pairs import ScoredItem, media_pair_prompt, pair_prompts
from thalweg.engine.client.rankings import Rankings
from thalweg.media.kinds import name_kinds
from thalweg.params import PoolingParams
from thalweg.server.core.admission import Ticket
from thalweg.server.core.pooled import Output as Output
from thalweg.server.core.pooled import PoolingJob as PoolingJob
from thalweg.server.core.pooled import run as run
from thalweg.server.core.request import ChatFields
from thalweg.server.core.serving import Serving
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import or_disconnect
from thalweg.server.http.middleware import current_scope, tenant_of
from thalweg.server.pooling.protocol import InputRequest, PoolingRequestBase
from thalweg.text import cut
from thalweg.text.cut import TokenizedText, Truncation

R = TypeVar("R", bound=PoolingRequestBase)
T = TypeVar("T")
HEAVY = 65_536
"""Numbers of an answer; more are written on a thread, which lets others run between one result and the next."""


async def read(serving: Serving, http: Http, kind: type[R]) -> tuple[R, Ticket]:
    """The request's body and its place in the queue. ApiError as `Serving.read`, and 404 for an unknown model."""
    request, ticket = await serving.read(http, lambda body: serving.fields.parse(kind, body))
    serving.model_name(request.model)
    return request, ticket


async def answer(http: Http, work: Awaitable[bytes]) -> Response:
    """The body as JSON. A client that disconnects before it is ready cancels the work."""
    body = await or_disconnect(http.receive, work)
    return Response(status_code=499) if body is None else Response(body, media_type="application/json")


# ------------------------------------------------------------------ texts


def cut_of(serving: Serving, request: PoolingRequestBase) -> Truncation | None:
    """How the request wants long texts cut; None: not at all."""
    tokenizer, longest = serving.engine.tokenizer, serving.engine.config.model.prompt_limit
    usual = tokenizer.truncation_side if tokenizer is not None else "right"
    return cut.read_cut(request.truncate_prompt_tokens, request.truncation_side, longest, usual)


async def inputs(serving: Serving, request: InputRequest, tenant: str) -> list[dict[str, Any]]:
    """The prompts of `input` or of `messages`, each with its token ids. An input too long is named by its place."""
    chat = request.conversation
    if chat is not None:
        return [await _message_prompt(serving, chat, cut_of(serving, request))]
    given: list[Any] = [request.input]
    if isinstance(request.input, list) and request.input and not isinstance(request.input[0], int):
        given = request.input
    if request.input in ("", []):
        raise ApiError("input must not be empty", "input")
    shape = cut_of(serving, request)
    special = request.add_special_tokens is not False
    texts = [item for item in given if isinstance(item, str)]
    found = iter(await texts_read(serving, texts, "input", shape, tenant, special=special) if texts else ())
    prompts = [
        {"prompt": item, "prompt_token_ids": next(found).ids}
        if isinstance(item, str)
        else {"prompt_token_ids": cut.cut_ids(item, shape)}
        for item in given
    ]
    _check(serving, prompts, lambda i: f"input[{i}]" if len(given) > 1 else "input")
    return prompts


async def _message_prompt(serving: Serving, chat: ChatFields, shape: Truncation | None) -> dict[str, Any]:
    """The prompt of a conversation, with its media."""
    prompt = await serving.conversation.prompt(chat)
    if shape is not None:
        _check_uncut(MEDIA in prompt)
        prompt = {**prompt, "prompt_token_ids": cut.cut_ids(prompt["prompt_token_ids"], shape)}
    _check(serving, [prompt], lambda _: "messages")
    return prompt


def _check_uncut(has_media: bool) -> None:
    if has_media:
        raise ApiError(
            f"truncate_prompt_tokens: not supported with {name_kinds('or')}; remove the field", "truncate_prompt_tokens"
        )


async def media_prompts(
    serving: Serving, sides: Sequence[ScoredItem], param: str, shape: Truncation | None
) -> list[dict[str, Any]]:
    """The prompt of each item, as a message of a user. Some hold media."""
    _check_uncut(shape is not None)
    prompts = [await serving.conversation.item_prompt(side) for side in sides]
    _check(serving, prompts, lambda i: f"{param}[{i}]" if len(prompts) > 1 else param)
    return prompts


async def media_pairs(
    serving: Serving, sides: tuple[Sequence[ScoredItem], Sequence[ScoredItem]], which: Sequence[tuple[int, int]],
    names: tuple[str, str], shape: Truncation | None, instruction: str | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The prompt of each pair of items, some with media. which: indices of the items of each pair."""
    media, pooling, tokenizer = serving.engine.media, serving.engine.config.model.pooling, serving.tokenizer(names[0])
    assert media is not None
    assert pooling is not None
    _check_uncut(shape is not None)
    tenant = tenant_of(current_scope.get())
    read = [[await media.read_async(item.sources, tenant) for item in side] for side in sides]
    prompts = [
        await asyncio.to_thread(
            media_pair_prompt, tokenizer, media, (sides[0][i], sides[1][j]), (read[0][i], read[1][j]), pooling, instruction
        )
        for i, j in which
    ]
    _check(serving, prompts, lambda i: f"{names[1]}[{i}]")
    return prompts


async def texts_read(
    serving: Serving,
    texts: Sequence[str],
    param: str,
    shape: Truncation | None,
    tenant: str,
    *,
    special: bool = True,
    most: int = 0,
) -> list[TokenizedText]:
    """Each text's tokens. most: kept tokens of a text itself. 0: all."""
    tokenizer = serving.tokenizer(param)
    return await _encode(
        serving, texts, param, shape, tenant, lambda: [cut.read_text(tokenizer, t, shape, special, most) for t in texts]
    )


async def texts_prompts(
    serving: Serving, texts: Sequence[str], param: str, shape: Truncation | None, tenant: str, most: int
) -> list[dict[str, Any]]:
    """The prompt of each text."""
    prompts = [{"prompt_token_ids": r.ids} for r in await texts_read(serving, texts, param, shape, tenant, most=most)]
    _check(serving, prompts, lambda i: f"{param}[{i}]" if len(prompts) > 1 else param)
    return prompts


async def pairs_read(
    serving: Serving, pairs: Sequence[tuple[str, str]], param: str, shape: Truncation | None, tenant: str, most: tuple[int,
    int],
    instruction: str | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The prompt of each pair, as `pair_prompts` makes them."""
    tokenizer, pooling = serving.tokenizer(param), serving.engine.config.model.pooling
    assert pooling is not None
    first = {a: None for a, _ in pairs}
    texts = [*first, *(b for _, b in pairs)]
    prompts = await _encode(
        serving, texts, param, shape, tenant, lambda: pair_prompts(tokenizer, pairs, shape, pooling, most, instruction)
    )
    _check(serving, prompts, lambda i: f"{param}[{i}]")
    return prompts


async def rankings_read(
    serving: Serving, rankings: Rankings, texts: tuple[Sequence[str], Sequence[str]], param: str, tenant: str,
    most: tuple[int, int], instruction: str | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The prompt of each query with all of its documents."""
    tokenizer = serving.tokenizer(param)
    prompts = await _encode(
        serving, [*texts[0], *texts[1]], param, None, tenant, lambda: rankings.prompts(tokenizer, texts, most, instruction)
    )
    _check(serving, prompts, lambda i: f"{param}[{i}]" if len(prompts) > 1 else param)
    return prompts


async def _encode(
    serving: Serving, texts: Sequence[str], param: str, shape: Truncation | None, tenant: str, work: Callable[[], list[T]]
) -> list[T]:
    encoder = serving.encoder
    assert encoder is not None, "there is a tokenizer"
    if shape is None:
        for text in texts:
            encoder.check(text, param)
    return await encoder.run(work, sum(map(len, texts)), param, tenant)


def _check(serving: Serving, prompts: Sequence[dict[str, Any]], where: Callable[[int], str]) -> None:
    """Before they wait for a turn, not after."""
    limit = serving.engine.config.model.prompt_limit
    for i, prompt in enumerate(prompts):
        n = len(prompt["prompt_token_ids"])
        if not n:
            raise ApiError(f"{where(i)} must not be empty", where(i))
        if n > limit:
            raise ApiError(
                f"{where(i)}: {n} tokens exceed the model's {limit}; shorten it, or send truncate_prompt_tokens=-1 to have "
                "long texts cut",
                where(i),
            )


# ------------------------------------------------------------------ running


def job(
    serving: Serving, kind: str, http: Http, request: PoolingRequestBase, prompts: list[dict[str, Any]], params: PoolingParams,
    ticket: Ticket,
) -> PoolingJob:  # fmt: skip
    """A job from its parts; its whole cost is charged."""
    serving.engine.check_pooling(params)
    return serving.accept(PoolingJob, kind, http, request, prompts, params, ticket)


# ------------------------------------------------------------------ answers


def usage(serving: Serving, outputs: Sequence[Output]) -> dict[str, Any]:
    tokens = sum(len(o.prompt_token_ids) for o in outputs)
    return serving.usage(tokens, 0, sum(o.num_cached_tokens for o in outputs))


def list_response(work: PoolingJob, data: Any, used: dict[str, Any]) -> dict[str, Any]:
    """An answer in the form that most routes share."""
    return {
        "id": work.id, "object": "list", "created": work.created, "model": work.model, "data": data, "usage": used,
    }  # fmt: skip


async def serialize_outputs(
    body: dict[str, Any], outputs: Sequence[Output], entry: Callable[[int, Output], dict[str, Any]]
) -> bytes:
    """`body` as JSON, its "data" one `entry` per output."""

    def write() -> bytes:
        option = orjson.OPT_SERIALIZE_NUMPY
        data = b",".join(orjson.dumps(entry(i, o), option=option) for i, o in enumerate(outputs))
        return orjson.dumps(body | {"data": orjson.Fragment(b"[" + data + b"]")}, option=option)

    heavy = sum(o.outputs.data.size for o in outputs) > HEAVY
    return await asyncio.to_thread(write) if heavy else write()
