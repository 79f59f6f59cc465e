"""/v2/chat of Cohere's API, translated to the chat it asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from thalweg.outputs import CompletionOutput, RequestOutput
from thalweg.server.cohere.errors import ERRORS
from thalweg.server.cohere.pieces import CohereContentWriter
from thalweg.server.cohere.protocol import ChatV2Request, CohereMessage, CoherePart
from thalweg.server.core.answer import Answer
from thalweg.server.core.job import GenerationJob
from thalweg.server.core.request import ChatRequest
from thalweg.server.core.serving import Serving
from thalweg.server.core.turn import TurnReply, prepare_chat
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import typed_event

SAME = (
    "model", "max_tokens", "stream", "temperature", "seed", "frequency_penalty", "presence_penalty", "tools", "priority",
    "disable_spec_decode",
)  # fmt: skip


async def chat(serving: Serving, http: Request) -> Response:
    request, ticket = await serving.read(http, lambda body: serving.fields.parse(ChatV2Request, body))
    serving.model_name(request.model)
    chat = chat_of(request)
    params, prompt, answer = await prepare_chat(serving, chat)
    job = serving.job("chat", http, chat, [prompt], params, ticket)
    return await CohereReply(serving, job, answer).respond(http, bool(request.stream), request.ignored_fields)


def chat_of(request: ChatV2Request) -> ChatRequest:
    fields: dict[str, Any] = {name: getattr(request, name) for name in SAME}
    fields |= {
        "messages": [_message(m) for m in request.messages],
        "stop": request.stop_sequences or None,
        "top_k": request.k,
        "top_p": request.p,
        "response_format": _format(request.response_format),
        "include_reasoning": not (request.thinking and request.thinking.type == "disabled"),
    }
    if request.thinking:
        fields["chat_template_kwargs"] = {"enable_thinking": request.thinking.type == "enabled"}
    if request.strict_tools:
        fields["tools"] = [_strict(t) for t in request.tools or ()] or None
    if request.tools and request.tool_choice:
        fields["tool_choice"] = request.tool_choice.lower()
    elif request.tool_choice == "REQUIRED":
        raise ApiError("tool_choice: REQUIRED needs a function in tools", "tool_choice")
    return ChatRequest.model_validate(fields)


def _strict(tool: dict[str, Any]) -> dict[str, Any]:
    """The tool, its calls held to its schema. One without a function is refused later, by name."""
    function = tool.get("function")
    return {**tool, "function": {**function, "strict": True}} if isinstance(function, dict) else tool


def _format(form: dict[str, Any] | None) -> dict[str, Any] | None:
    """`schema` is how version 1 of this API writes json_schema. ApiError names one that would be ignored."""
    found = [key for key in ("json_schema", "schema") if form and form.get(key) is not None]
    if not form or not found:
        return form
    where = f"response_format.{found[0]}"
    if len(found) > 1:
        raise ApiError("response_format: only one of json_schema and schema can hold: leave out the other", where)
    if form.get("type") not in ("json_object", "json_schema"):
        raise ApiError(f"{where}: needs type json_object, not {form.get('type')!r:.60}", where)
    if found[0] == "schema":
        return {**form, "type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form["json_schema"]}}


def _message(message: CohereMessage) -> dict[str, Any]:
    content = message.content
    parts = content if isinstance(content, list) else ()
    text = content if isinstance(content, str) else "\n".join(_text(p) for p in parts if p.type != "thinking")
    out: dict[str, Any] = {"role": message.role, "content": text}
    if thought := "".join(p.thinking or "" for p in parts) or message.tool_plan:
        out["reasoning"] = thought
    if message.tool_calls:
        out["tool_calls"] = [c.model_dump(exclude_none=True) for c in message.tool_calls]
    if message.tool_call_id:
        out["tool_call_id"] = message.tool_call_id
    return out


def _text(part: CoherePart) -> str:
    if part.type != "document":
        return part.text or ""
    return part.document if isinstance(part.document, str) else orjson.dumps(part.document).decode()


class CohereReply(TurnReply):
    errors = ERRORS

    def __init__(self, serving: Serving, job: GenerationJob, answer: Answer) -> None:
        super().__init__(serving, job)
        self.answer = answer
        self._pieces = CohereContentWriter()
        self._ended: CompletionOutput | None = None
        """The choice as it ended."""

    def write_body(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        (choice,) = outputs[0].outputs
        for _ in self._pieces.push(self.answer.events(choice)):
            pass
        message: dict[str, Any] = {"role": "assistant"}
        if self._pieces.content or not self._pieces.calls:
            message["content"] = self._pieces.content or [{"type": "text", "text": ""}]
        if self._pieces.calls:
            message["tool_calls"] = self._pieces.calls
        return {"id": self.job.id, "message": message, **self._ending(choice)}

    def begin(self) -> Iterator[bytes]:
        reply = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
        yield typed_event({"type": "message-start", "id": self.job.id, "delta": {"message": reply}})

    def write(self, i: int, output: RequestOutput) -> list[bytes]:
        (choice,) = output.outputs
        if choice.finish_reason is not None:
            self._ended = choice
        return [typed_event(piece) for piece in self._pieces.push(self.answer.events(choice))]

    def end(self) -> Iterator[bytes]:
        if self._ended is not None:
            for piece in self._pieces.finish():
                yield typed_event(piece)
            yield typed_event({"type": "message-end", "id": self.job.id, "delta": self._ending(self._ended)})

    def _ending(self, choice: CompletionOutput) -> dict[str, Any]:
        tokens = {"input_tokens": self.job.prompt_tokens, "output_tokens": self.made}
        if choice.finish_reason == "length":
            reason = "MAX_TOKENS"
        elif isinstance(choice.stop_reason, str):
            reason = "STOP_SEQUENCE"
        elif choice.finish_reason == "abort":
            reason = "ERROR"
        else:
            reason = "TOOL_CALL" if self.answer.has_call(choice) else "COMPLETE"
        usage = {"billed_units": tokens, "tokens": tokens, "cached_tokens": self.cached_tokens}
        return {"finish_reason": reason, "usage": usage}
