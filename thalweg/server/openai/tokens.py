"""/tokenize and /detokenize. Neither has a place in the queue: nothing of theirs goes to the engine."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from thalweg.server.core.serving import Serving
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import respond
from thalweg.server.http.middleware import tenant_of
from thalweg.server.openai.protocol import DetokenizeRequest, TokenizeChat, TokenizeText


async def tokenize(serving: Serving, http: Request) -> Response:
    def read(body: dict[str, Any]) -> TokenizeChat | TokenizeText:
        return serving.fields.parse(TokenizeChat, body) if "messages" in body else serving.fields.parse(TokenizeText, body)

    request = await serving.bodies.parse(http, read)
    serving.model_name(request.model)
    if isinstance(request, TokenizeChat):
        ids = (await serving.conversation.prompt(request))["prompt_token_ids"]
    else:  # of any length: the client may want to know by how much it is too long
        tenant = tenant_of(http.scope)
        (ids,) = await serving.encode([request.prompt], request.add_special_tokens, tenant=tenant, bounded=False)
    out = {"count": len(ids), "max_model_len": serving.engine.config.model.max_len, "tokens": ids, "token_strs": None}
    if request.return_token_strs:
        out["token_strs"] = [serving.tokenizer("return_token_strs").token_of(i) for i in ids]
    return respond(out)


async def detokenize(serving: Serving, http: Request) -> Response:
    request = await serving.bodies.parse(http, lambda body: serving.fields.parse(DetokenizeRequest, body))
    serving.model_name(request.model)
    tokenizer = serving.tokenizer("tokens")
    vocab = max(serving.engine.config.model.vocab, tokenizer.vocab_size)
    for i, token in enumerate(request.tokens):
        if token >= vocab:
            raise ApiError(f"tokens[{i}]: {token} is outside the vocabulary of {vocab}", f"tokens[{i}]")
    return respond({"prompt": tokenizer.decode(request.tokens, False)})
