"""The routes, a row each, but the probes (core/lifecycle) and the description (description.py). A route's function is in a
separate file: `async def name(serving, http) -> Response`. Its errors become answers here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from thalweg.media.audio_files import TYPES
from thalweg.plugins import import_attribute
from thalweg.server.core.abilities import able, refusal
from thalweg.server.core.conversation import Conversation
from thalweg.server.core.lines import LineRunner
from thalweg.server.core.serving import Serving
from thalweg.server.description import EVENTS, RouteDescription
from thalweg.server.errors import ErrorForm
from thalweg.server.http.answer import OPENAI, failure
from thalweg.server.http.middleware import current_scope

ROOM = "thalweg.server."
JSON = ("application/json",)
STREAMED = (*JSON, EVENTS)
"""Content types of streamable answers."""
TRANSCRIBED = (*STREAMED, "text/plain")
SPOKEN = (*TYPES.values(), EVENTS)
AUDIO_FORM = "audio.protocol:AudioRequest"
MESSAGES_ERRORS = "anthropic.errors:ERRORS"
COHERE_ERRORS = "cohere.errors:ERRORS"
RESPONSES_ERRORS = "responses.errors:ERRORS"
CONVERSATION_ERRORS = "openai.errors:CONVERSATION"
PROMPT_ERRORS = "openai.errors:PROMPTS"
INPUT_ERRORS = "openai.errors:INPUTS"
DEV = "server_dev_mode"
ADAPTERS = "enable_lora_routes"
TRAINED = "receives_weights"


@dataclass(frozen=True, slots=True)
class Row:
    """Modules are named, below `thalweg.server`, and imported if the model has the route, or when somebody asks for the
    description: a server loads no dialect that its model does not speak."""

    path: str
    where: str
    """"module:function"."""
    says: str
    bodies: tuple[str, ...] = ()
    """Pydantic models as "module:class". A body matches one."""
    kinds: tuple[str, ...] = JSON
    """Content types of the answer."""
    needs: str = ""
    """The required ability of the model (`ModelConfig.tasks`). "": none."""
    also: tuple[str, ...] = ()
    """Other paths of the same."""
    method: str = ""
    """"": POST where there is a body, else GET."""
    errors: str = ""
    """An ErrorForm as "module:name". "": OpenAI's."""
    given: str = ""
    """The condition of the route: a true field of ServerSettings, or of the engine, or one of several (a|b). "": always."""
    form: str = ""
    """Pydantic model of the fields of a form with a file, as "module:class"."""
    shared: bool = False
    """It asks no model: the function needs only a `ServerContext`."""

    @property
    def http_method(self) -> str:
        """The method of its requests."""
        return self.method or ("POST" if self.bodies else "GET")


ROUTES = (
    Row("/v1/completions", "openai.completions:completions", "Continue text", ("openai.protocol:CompletionRequest",), STREAMED,
        "generate", errors=PROMPT_ERRORS),
    Row("/v1/chat/completions", "openai.chat:chat_completions", "Answer a conversation", ("core.request:ChatRequest",),
        STREAMED, "generate", errors=CONVERSATION_ERRORS),
    Row("/tokenize", "openai.tokens:tokenize", "Token ids of a text or a conversation",
        ("openai.protocol:TokenizeText", "openai.protocol:TokenizeChat")),
    Row("/detokenize", "openai.tokens:detokenize", "The text of token ids", ("openai.protocol:DetokenizeRequest",)),
    Row("/v1/models", "openai.models:models", "The models served"),
    Row("/v1/models/{name:path}", "openai.models:model", "One model"),
    Row("/v1/messages", "anthropic.messages:messages", "Answer a conversation", ("anthropic.protocol:MessagesRequest",),
        STREAMED, "generate", errors=MESSAGES_ERRORS),
    Row("/v1/messages/count_tokens", "anthropic.count_tokens:count_tokens", "Tokens of a conversation",
        ("anthropic.protocol:CountRequest",), errors=MESSAGES_ERRORS),
    Row("/v1/responses", "responses.responses:responses", "Answer a conversation", ("responses.protocol:ResponsesRequest",),
        STREAMED, "generate", errors=RESPONSES_ERRORS),
    Row("/v1/responses/input_tokens", "responses.input_tokens:input_tokens", "Tokens of a conversation",
        ("responses.protocol:InputTokensRequest",), errors=RESPONSES_ERRORS),
    Row("/v1/responses/{id}", "responses.retrieve:retrieve", "A stored response", (), STREAMED, shared=True),
    Row("/v1/responses/{id}", "responses.retrieve:delete", "Forget a response", method="DELETE", shared=True),
    Row("/v1/responses/{id}/cancel", "responses.cancel:cancel", "End a response in the background", method="POST", shared=True),
    Row("/v1/responses/{id}/input_items", "responses.input_items:input_items", "The input of a response", shared=True),
    Row("/v1/embeddings", "pooling.embeddings:embeddings", "A vector per input", ("pooling.protocol:EmbeddingRequest",),
        needs="embed", errors=INPUT_ERRORS),
    Row("/pooling", "pooling.pooling:pooling", "The model's output for each input", ("pooling.protocol:PoolingRequest",),
        needs="pool", errors=INPUT_ERRORS),
    Row("/classify", "pooling.classify:classify", "The classes of each input", ("pooling.protocol:ClassifyRequest",),
        needs="classify", errors=INPUT_ERRORS),
    Row("/score", "pooling.score:score", "How well texts go together", ("pooling.protocol:ScoreRequest",), needs="score",
        also=("/v1/score",)),
    Row("/rerank", "pooling.rerank:rerank", "Documents in order of how well they answer", ("pooling.protocol:RerankRequest",),
        needs="score", also=("/v1/rerank", "/v2/rerank", "/cohere/v2/rerank")),
    Row("/v2/chat", "cohere.chat:chat", "Answer a conversation", ("cohere.protocol:ChatV2Request",), STREAMED, "generate",
        ("/cohere/v2/chat",), errors=COHERE_ERRORS),
    Row("/v2/embed", "cohere.embed:embed", "A vector per text", ("cohere.protocol:EmbedRequest",), needs="embed",
        also=("/cohere/v2/embed",), errors=COHERE_ERRORS),
    Row("/v1/audio/transcriptions", "audio.transcriptions:transcriptions", "Transcribe speech", (), TRANSCRIBED,
        "transcription", method="POST", form=AUDIO_FORM),
    Row("/v1/audio/translations", "audio.transcriptions:translations", "Translate speech into English text", (), TRANSCRIBED,
        "transcription", method="POST", form=AUDIO_FORM),
    Row("/v1/audio/speech", "audio.speech:speech", "Speak a text", ("audio.speech_protocol:SpeechRequest",), SPOKEN, "speech",
        errors="audio.speech:ERRORS"),
    Row("/v1/audio/voices", "audio.speech:voices", "Voices of the model", needs="speech"),
    Row("/v1/realtime", "audio.realtime:realtime", "Transcribe live speech over a WebSocket", needs="transcription"),
    Row("/v1/chat/completions/batch", "openai.chat_batch:chat_batch", "Answer several conversations",
        ("openai.chat_batch:BatchChatRequest",), needs="generate", errors=CONVERSATION_ERRORS),
    Row("/v1/chat/completions/render", "inference.render:chat", "A conversation as token ids and parameters",
        ("core.request:ChatRequest",), needs="generate", errors=CONVERSATION_ERRORS),
    Row("/v1/completions/render", "inference.render:completions", "Prompts as token ids and parameters",
        ("openai.protocol:CompletionRequest",), needs="generate", errors=PROMPT_ERRORS),
    Row("/inference/v1/generate", "inference.generate:generate", "Token ids in, token ids out",
        ("inference.protocol:GenerateRequest",), STREAMED, "generate"),
    Row("/generate", "inference.demo:generate", "Continue a prompt, in whole texts", ("inference.demo:PromptRequest",),
        (*JSON, "application/x-ndjson"), "generate"),
    Row("/abort_requests", "inference.abort:abort_requests", "End requests by name", ("inference.protocol:AbortRequest",),
        given="tokens_only"),
    Row("/generative_scoring", "inference.scoring:generative_scoring", "How probable a token is after each item",
        ("inference.scoring:ScoringRequest",), needs="generate"),
    Row("/invocations", "openai.invocations:invocations", "The route for the body's form", (), STREAMED, method="POST"),
    Row("/tokenizer_info", "operators.info:tokenizer_info", "The tokenizer's settings", given="enable_tokenizer_info_endpoint"),
    Row("/server_info", "operators.info:server_info", "The configuration of this server", given=DEV),
    Row("/v1/files", "batches.files:upload", "Send a file of requests", method="POST", shared=True),
    Row("/v1/files", "batches.files:listing", "Stored files", shared=True),
    Row("/v1/files/{id}", "batches.files:retrieve", "One file", shared=True),
    Row("/v1/files/{id}", "batches.files:delete", "Forget a file", method="DELETE", shared=True),
    Row("/v1/files/{id}/content", "batches.files:content", "The content of a file", kinds=("application/octet-stream",),
        shared=True),
    Row("/v1/batches", "batches.batches:create", "Answer a file of requests", ("batches.batches:BatchRequest",), shared=True),
    Row("/v1/batches", "batches.batches:listing", "Batches", shared=True),
    Row("/v1/batches/{id}", "batches.batches:retrieve", "One batch", shared=True),
    Row("/v1/batches/{id}/cancel", "batches.batches:cancel", "End a batch", method="POST", shared=True),
    Row("/v1/requests/{id}/why", "operators.why:why", "Why a request waited, or took as long as it did"),
    Row("/version", "operators.metrics:version", "The version of this server", shared=True),
    Row("/load", "operators.metrics:load", "Requests in flight that go to the engine", shared=True),
    Row("/metrics", "operators.metrics:metrics", "Prometheus metrics", kinds=("text/plain",), shared=True),
    Row("/kv_event_sources", "operators.kv_events:kv_event_sources", "Addresses of published KV events"),
    Row("/sleep", "operators.sleep:sleep", "Give the engine's memory back", method="POST", given=DEV),
    Row("/wake_up", "operators.sleep:wake_up", "Start the engine again", method="POST", given=DEV),
    Row("/is_sleeping", "operators.sleep:is_sleeping", "Does the engine sleep?"),
    Row("/pause", "operators.pause:pause", "Start no step until /resume", method="POST", given=f"{DEV}|{TRAINED}"),
    Row("/resume", "operators.pause:resume", "Go on after /pause", method="POST", given=f"{DEV}|{TRAINED}"),
    Row("/is_paused", "operators.pause:is_paused", "Is the engine paused?", given=f"{DEV}|{TRAINED}"),
    Row("/reset_prefix_cache", "operators.pause:reset_prefix_cache", "Forget cached prefixes", method="POST", given=DEV),
    Row("/reset_mm_cache", "operators.caches:reset_mm_cache", "Forget media that were read", method="POST", given=DEV),
    Row("/reset_encoder_cache", "operators.caches:reset_encoder_cache", "Forget outputs of encoders", method="POST", given=DEV),
    Row("/init_weight_transfer_engine", "operators.weights:init", "Join a trainer's process group",
        ("operators.weights:InitRequest",), given=TRAINED),
    Row("/start_weight_update", "operators.weights:start", "Begin to receive weights",
        ("operators.weights:StartUpdateRequest",), given=TRAINED),
    Row("/update_weights", "operators.weights:update", "Receive tensors", ("operators.weights:UpdateRequest",), given=TRAINED),
    Row("/finish_weight_update", "operators.weights:finish", "Serve the received weights", method="POST", given=TRAINED),
    Row("/collective_rpc", "operators.weights:collective_rpc", "Weight updates by the names of worker methods",
        ("operators.weights:CollectiveRequest",), given=TRAINED),
    Row("/get_world_size", "operators.world:get_world_size", "Devices that share the model", given=f"{DEV}|{TRAINED}"),
    Row("/scale_elastic_ep", "operators.world:scale", "Change the number of engines", ("operators.world:ScaleRequest",),
        given=DEV),
    Row("/is_scaling_elastic_ep", "operators.world:is_scaling", "Does the number of engines change?", method="POST"),
    Row("/v1/load_lora_adapter", "operators.adapters:load", "Serve an adapter", ("operators.adapters:LoadRequest",),
        ("text/plain",), given=ADAPTERS),
    Row("/v1/unload_lora_adapter", "operators.adapters:unload", "Forget an adapter", ("operators.adapters:UnloadRequest",),
        ("text/plain",), given=ADAPTERS),
    Row("/start_profile", "operators.profile:start", "Record the operations of steps", method="POST", given="profiles"),
    Row("/stop_profile", "operators.profile:stop", "Write the recording", method="POST", given="profiles"),
    Row("/page/state", "page.state:state", "The web page's data about the server", given="webui"),
)  # fmt: skip


TOKENS_ONLY = frozenset(
    {"/inference/v1/generate", "/abort_requests", "/v1/models", "/version", "/load", "/metrics", "/kv_event_sources"}
)
"""Routes of a server without texts (--tokens-only)."""


def describe_routes(serving: Serving) -> list[RouteDescription]:
    """Every route, ready to serve. A route the model cannot serve is refused, naming the routes it can."""
    given = [row for row in ROUTES if not row.given or _is_enabled(serving, row.given)]
    if serving.settings.tokens_only:
        given = [row for row in given if row.path in TOKENS_ONLY]
    return [d for row in given for d in describe_row(row, partial(_endpoint, serving, row))]


def describe_row(row: Row, endpoint: Callable[[str], Callable[[Request], Awaitable[Response]]]) -> list[RouteDescription]:
    """The routes of a row, one for each of its paths. endpoint: the function of a path."""
    bodies, form = tuple(ROOM + b for b in row.bodies), ROOM + row.form if row.form else ""
    return [
        RouteDescription(path, endpoint(path), bodies, row.says, row.kinds, row.needs, row.method, form)
        for path in (row.path, *row.also)
    ]


def prepare_routes(serving: Serving) -> list[RouteDescription]:
    """Complete a Serving, and describe its routes."""
    serving.conversation = Conversation(serving)
    listed = describe_routes(serving)
    serving.lines = lines_of(listed, serving)
    return listed


def lines_of(listed: list[RouteDescription], serving: Serving) -> LineRunner:
    """The runner of lines of batch files, with the routes the served model supports."""
    able_rows = (d for d in listed if d.bodies and d.needs and able(serving, d.needs) and JSON[0] in d.kinds)
    paths = {d.path: d.endpoint for d in able_rows}
    return LineRunner(paths, serving.bodies)


def _is_enabled(serving: Serving, given: str) -> bool:
    places = {n: serving.settings if hasattr(serving.settings, n) else serving.engine for n in given.split("|")}
    return any(getattr(place, name, False) for name, place in places.items())


def _endpoint(serving: Serving, row: Row, path: str) -> Callable[[Request], Awaitable[Response]]:
    row = replace(row, path=path)
    if not able(serving, row.needs):
        return _refusing(serving, row)
    if row.needs:  # now, not when the first request waits for it
        import_attribute(ROOM + row.where)

    async def handle(http: Request) -> Response:
        current_scope.set(http.scope)
        try:
            result: Response = await import_attribute(ROOM + row.where)(serving, http)
            return result
        except Exception as e:
            return error_response(row, e)

    return handle


def _refusing(serving: Serving, row: Row) -> Callable[[Request], Awaitable[Response]]:
    error = refusal(row.path, row.needs, [r.path for r in ROUTES if r.needs and able(serving, r.needs)])

    async def refuse(http: Request) -> Response:
        return error_response(row, error)

    return refuse


def error_response(row: Row, error: Exception) -> Response:
    """The answer to a failed request, in the form of the route's dialect."""
    form: ErrorForm = import_attribute(ROOM + row.errors) if row.errors else OPENAI
    return failure(error, form=form)
