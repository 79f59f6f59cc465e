"""Options of answers: templates, tools, reasoning, usage, metrics."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from thalweg.errors import ConfigError
from thalweg.lora import read_modules
from thalweg.options.http import HttpOptions
from thalweg.options.option import Option

_option = partial(Option, group="Frontend")


def check_role(role: str) -> Iterator[str]:
    if not role:
        yield "must not be empty"


def check_modules(words: list[str]) -> Iterator[str]:
    try:
        read_modules(words)
    except ConfigError as e:
        yield str(e)


def check_roots(folders: list[str]) -> Iterator[str]:
    yield from (f"no folder {folder!r}" for folder in folders if not Path(folder).is_dir())


class AnswerOptions(HttpOptions, kw_only=True, frozen=True):
    """Rendering of prompts, and contents of answers."""

    lora_modules: Annotated[list[str] | None, _option(
        "Adapters served at start under separate names: name=path, or JSON (needs --enable-lora)", check=check_modules,
    )] = None  # fmt: skip
    lora_root: Annotated[list[str], _option(
        "Folder of adapters that /v1/load_lora_adapter and resolvers may load; repeatable", tier="own", repeats=True,
        check=check_roots,
    )] = []  # fmt: skip
    lora_resolver: Annotated[list[str], _option(
        "Resolver that finds adapters for unknown model names: folder (of that name in a --lora-root), or that "
        "of an installed package; repeatable", tier="own", repeats=True,
    )] = []  # fmt: skip
    enable_lora_routes: Annotated[bool, _option(
        "Routes that load and unload adapters (also THALWEG_ALLOW_RUNTIME_LORA_UPDATING=true)", tier="own",
    )] = False  # fmt: skip
    chat_template: Annotated[
        str | None, _option("Jinja chat template: a file, inline text, or the name of one of the model's")
    ] = None
    """In ServerSettings the text, or a name: the command line reads the file."""
    chat_template_content_format: Annotated[
        str, _option("Give template message content as string or part list", choices=("auto", "openai", "string"))
    ] = "auto"
    default_chat_template_kwargs: Annotated[
        dict[str, Any] | None, _option("Template variables applied when request omits them")
    ] = None
    trust_request_chat_template: Annotated[bool, _option("Allow request-supplied chat template or template kwargs")] = False
    response_role: Annotated[str, _option("Role name in generated chat messages", check=check_role)] = "assistant"
    exclude_tools_when_tool_choice_none: Annotated[bool, _option("Drop tool schemas from prompt when choice is none")] = False
    enable_auto_tool_choice: Annotated[bool, _option("Let the model decide about tool calls; on unless switched off")] = True
    tool_call_parser: Annotated[str | None, _option(
        "Format of tool calls in the text: a name, auto, hf (the template's) or none; default: auto",
    )] = None  # fmt: skip
    tool_strict_level: Annotated[str, _option(
        "Which calls of tool_choice auto follow a grammar. off: only strict tools; function: names and form of all calls; "
        "parameter: their schemas too", choices=("off", "function", "parameter"),
    )] = "off"  # fmt: skip
    tool_parser_plugin: Annotated[str | None, _option("Python file registering further tool parsers")] = None
    reasoning_parser: Annotated[str | None, _option("Splits thinking text from answer", group="StructuredOutputsConfig")] = None
    reasoning_parser_plugin: Annotated[
        str | None, _option("Python file registering further reasoning parsers", group="StructuredOutputsConfig")
    ] = None
    anthropic_disabled_thinking_effort: Annotated[str | None, _option(
        "reasoning_effort of Messages API requests that disable thinking and name no effort",
        choices=("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    )] = None  # fmt: skip
    server_dev_mode: Annotated[bool, _option("Routes for operators (also THALWEG_SERVER_DEV_MODE=1)", tier="own")] = False
    enable_tokenizer_info_endpoint: Annotated[bool, _option("Expose tokenizer settings route")] = False
    tokens_only: Annotated[bool, _option(
        "Expose only the token-in, token-out route, and the one that ends requests by name", tier="scale",
    )] = False  # fmt: skip
    enable_request_id_headers: Annotated[
        bool, _option("X-Request-Id on responses: the client's, or one made for the request")
    ] = False
    enable_prompt_tokens_details: Annotated[bool, _option("Report cached-token count inside usage")] = False
    enable_force_include_usage: Annotated[bool, _option("Always return token usage; streams have it in every chunk")] = False
    enable_server_load_tracking: Annotated[bool, _option("Count in-flight requests for the load endpoint")] = False
    metrics_prefix: Annotated[str, _option(
        "Names of series in /metrics: thalweg:name, vllm:name (for vLLM's dashboards and gateways), or both",
        tier="own", choices=("thalweg", "vllm", "both"),
    )] = "both"  # fmt: skip
    public_metrics: Annotated[
        bool, _option("Answer /metrics without an API key, as vLLM does, for Prometheus and routers", tier="own")
    ] = False
    metrics_port: Annotated[int | None, _option(
        "Second TCP port, which answers /metrics and probes without an API key, and nothing else", tier="own", ge=1, le=65535,
    )] = None  # fmt: skip
    custom_histogram_buckets: Annotated[dict[str, Any] | None, _option(
        'Upper bounds of histogram buckets in /metrics, by family: {"request_latency": [0.1, 0.5, 1]}',
        group="ObservabilityConfig",
    )] = None  # fmt: skip
    """Families: `server.buckets.FAMILIES`."""
    enable_per_request_metrics: Annotated[bool, _option(
        "Times of a request in its answer, where one prompt has one choice", group="ObservabilityConfig",
    )] = False  # fmt: skip
    per_request_spec_decode_metrics: Annotated[str, _option(
        "Drafts of a request in its answer, where one prompt has one choice: their counts, or those of each step too",
        choices=("none", "summary", "detailed"), group="ObservabilityConfig",
    )] = "none"  # fmt: skip
    otlp_traces_endpoint: Annotated[str | None, _option(
        "OpenTelemetry collector of traces: http://host:4317 for gRPC, or a full HTTP address (needs thalweg[otel])",
        group="ObservabilityConfig",
    )] = None  # fmt: skip
    strict_requests: Annotated[bool, _option(
        "Refuse a request with an unknown field; else it is ignored, logged once and counted in "
        "unknown_request_fields_total", tier="own",
    )] = False  # fmt: skip
    return_tokens_as_token_ids: Annotated[bool, _option("Show logprob tokens as token_id:N strings")] = False
    fingerprint_mode: Annotated[str, _option("How system_fingerprint is built", choices=("full", "hash", "custom", "none"))] = (
        "full"
    )
    fingerprint_value: Annotated[str | None, _option("Literal fingerprint for custom mode")] = None
