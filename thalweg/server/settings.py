"""The settings of the HTTP server, checked once. Field names are the flags' names with `_` for `-`.

Only supported settings are fields: the command line refuses a flag in neither this class nor EngineArgs.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from typing import ClassVar

from thalweg.options.answers import AnswerOptions
from thalweg.options.flag import check, spell
from thalweg.options.option import Rules
from thalweg.server.buckets import problems_of
from thalweg.server.resolvers import RESOLVERS
from thalweg.turns.choose import AUTO, NONE
from thalweg.turns.table import CALLS, REASONING, TEMPLATE


def check_logs(settings: ServerSettings) -> Iterator[str]:
    if settings.enable_log_outputs and not settings.enable_log_requests:
        yield "--enable-log-outputs: needs --enable-log-requests too, which names the request an output belongs to"


def check_tls(settings: ServerSettings) -> Iterator[str]:
    if settings.ssl_keyfile and not settings.ssl_certfile:
        yield "--ssl-keyfile: needs --ssl-certfile too"
    if settings.enable_ssl_refresh and not settings.ssl_certfile:
        yield "--enable-ssl-refresh: needs --ssl-certfile"
    if settings.ssl_cert_reqs and not settings.ssl_ca_certs:
        yield "--ssl-cert-reqs: asking clients for certificates needs --ssl-ca-certs"


def check_ports(settings: ServerSettings) -> Iterator[str]:
    if settings.metrics_port is not None and settings.metrics_port == settings.port and not settings.uds:
        yield f"--metrics-port: {settings.metrics_port} is --port already; choose another, or use --public-metrics"


def check_fingerprint(settings: ServerSettings) -> Iterator[str]:
    if (settings.fingerprint_mode == "custom") != (settings.fingerprint_value is not None):
        yield "--fingerprint-value is needed with --fingerprint-mode custom, and only there"


def check_parsers(settings: ServerSettings) -> Iterator[str]:
    """Names of turn formats: plugins may have added some."""
    for name, known in (("tool_call_parser", CALLS), ("reasoning_parser", REASONING)):
        value = getattr(settings, name)
        if value and value not in known and value not in (AUTO, NONE, TEMPLATE) and value != "GptOss":
            names = ", ".join(sorted({AUTO, NONE, TEMPLATE, *known}))
            yield f"{spell(name)}: {value!r} is not one of {names}"


def check_roots(settings: ServerSettings) -> Iterator[str]:
    if settings.lora_root and not settings.enable_lora_routes and not settings.lora_resolver:
        yield "--lora-root: needs --lora-resolver, --enable-lora-routes or THALWEG_ALLOW_RUNTIME_LORA_UPDATING=true"
    if settings.lora_resolver and not settings.lora_root:
        yield "--lora-resolver: needs --lora-root, the folders that may be loaded from"
    if unknown := next((name for name in settings.lora_resolver if name not in RESOLVERS), None):
        yield f"--lora-resolver: {unknown!r:.80} is not one of {', '.join(RESOLVERS.names())}"


def check_buckets(settings: ServerSettings) -> Iterator[str]:
    yield from (f"--custom-histogram-buckets: {p}" for p in problems_of(settings.custom_histogram_buckets or {}))


class ServerSettings(AnswerOptions, kw_only=True, frozen=True):
    """See `thalweg serve --help=Frontend` for the meaning of each field. ConfigError lists all problems."""

    RULES: ClassVar[Rules] = (check_logs, check_tls, check_ports, check_fingerprint, check_parsers, check_roots, check_buckets)

    @property
    def hosts(self) -> frozenset[str] | None:
        """Host names this server answers to, besides addresses. None: any. Only a server on loopback without a key checks names
        itself. Remote clients cannot reach it, but a web page can through a browser, if its name resolves to this host (DNS
        rebinding)."""
        if self.allowed_hosts:
            return None if "*" in self.allowed_hosts else frozenset(h.lower() for h in self.allowed_hosts)
        if self.api_key or self.uds or not _is_loopback(self.host):
            return None
        return frozenset({"localhost", self.host.lower()})

    def __repr__(self) -> str:
        """Without the keys: settings end up in logs."""
        shown = {n: getattr(self, n) for n in self.__struct_fields__ if n != "api_key"}
        return f"ServerSettings({', '.join(f'{n}={v!r}' for n, v in shown.items())}, {len(self.api_key)} api keys)"

    def __post_init__(self) -> None:
        check(self, lambda name, words: f"{spell(name)}: {words}")


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
