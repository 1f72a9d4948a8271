"""Writes haproxy's configuration: plain requests go directly to replicas, all others to the gateway process."""

from collections.abc import Mapping, Sequence

from fairlead.frozen import dataclass
from fairlead.gateway.forwarding import TUNNEL_IDLE_S
from fairlead.gateway.messages import LONGEST_HEAD, LONGEST_TARGET, MOST_FIELDS
from fairlead.gateway.routes import ServiceRoute

LOG_FIELDS = (
    "%b %s %ST %[var(txn.t0)] %[date(0,us)] %[capture.req.hdr(0)] %[capture.res.hdr(0)] %B %sc %rc %tsc %[src] %HM "
    "%[var(txn.id)] %HPO"
)
"""The format that `proxy_log` reads; the path comes last, as only the path may be long."""
CONNECT_MS = 300
"""Milliseconds; also the time that haproxy waits before it retries the last remaining replica."""
CHECK = "check inter 2s fastinter 200ms downinter 500ms rise 1 fall 1 observe layer4 error-limit 1 on-error mark-down"
"""Health check of a replica: one that refuses a connection gets no requests until it accepts one again."""
GATEWAY_MORE_S = 10.0
"""Added seconds, as the gateway process reports its time-outs itself."""
GATEWAY = "gateway"
"""The backend of the gateway process, to which the maps lead the hosts and paths of services that it keeps."""
GATEWAY_SOCKET, FALLBACK_SOCKET = "door.sock", "fallback.sock"
"""Sockets of the gateway process, in the directory in which haproxy runs: for unmodified requests, and for requests
that were meant for a replica that is gone.
"""
_REQUEST_ID = "^[A-Za-z0-9._:/+=-]{1,128}$"
_TRACEPARENT = "^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?$"
_HOST = r"^(?:[A-Za-z0-9._-]*[A-Za-z0-9_-]|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?$"
_GUARDED = (
    r"  acl local_host req.fhdr(host),host_only -m reg -i ^(?:localhost|127\.0\.0\.1|\[::1\]|.*\.localhost)$",
    "  acl odd req.fhdr(origin) -m found",
    "  acl odd req.fhdr(sec-fetch-site) -m found",
)
_DIGITS = "".join(f"%[var(txn.u),bytes({at},{length})]" for at, length in ((0, 8), (9, 4), (14, 4), (19, 4), (24, 12)))
"""A UUID without its dashes."""
_MAXREWRITE = 4096


@dataclass(frozen=True, slots=True)
class ProxiedService:
    """A service in haproxy's configuration: the part that cannot be changed at runtime."""

    backend: str
    path: str | None
    hosts: tuple[str, ...]
    timeout_s: float


def configuration(
    services: Mapping[str, ProxiedService],
    servers: Mapping[str, Mapping[str, str]],
    *,
    listening_fd: int,
    log_fd: int,
    stats_socket: str,
    maps: tuple[str, str],
    most_connections: int,
    most_body: int,
    stop_within_s: float,
    is_guarded: bool,
    trusted: Sequence[str],
) -> str:
    """Return the text of a configuration.

    Args:
        services: Services by name.
        servers: Initial replicas of each backend, HOST:PORT by name.
        maps: Files of the maps of hosts and of paths.
        stop_within_s: Seconds within which haproxy ends after the signal to stop.
        is_guarded: What comes from pages in browsers, or by a name that is not this machine's, is for the gateway
            process.
        trusted: Networks of the proxies whose X-Forwarded-Host and -Proto are believed.
    """
    longest_s = max((service.timeout_s for service in services.values()), default=60.0)
    hosts, paths = maps
    lines = [
        "global",
        f"  stats socket unix@{stats_socket} mode 600 level admin",
        f"  maxconn {most_connections}",
        "  nbthread 1",
        f"  hard-stop-after {_ms(stop_within_s)}",
        f"  tune.bufsize {LONGEST_HEAD + _MAXREWRITE}",
        f"  tune.maxrewrite {_MAXREWRITE}",
        f"  tune.http.maxhdr {MOST_FIELDS}",
        "defaults",
        "  mode http",
        f"  timeout connect {CONNECT_MS}ms",
        f"  timeout client {_ms(longest_s)}",
        f"  timeout server {_ms(longest_s)}",
        "  timeout http-request 10s",
        "  timeout http-keep-alive 75s",
        f"  timeout tunnel {_ms(TUNNEL_IDLE_S + GATEWAY_MORE_S)}",
        "  option clitcpka",
        # A connection to a replica serves one client: one left by another client may have ended unnoticed.
        "  http-reuse never",
        "  retries 10",
        "  option redispatch 1",
        "  option idle-close-on-response",
        "  option abortonclose",
        "frontend f",
        f"  bind fd@{listening_fd}",
        f"  log fd@{log_fd} len 4096 format raw local0",
        f'  log-format "{LOG_FIELDS}"',
        "  option dontlognull",
        "  declare capture request len 20",
        "  declare capture response len 20",
        "  http-request capture req.fhdr(content-length) id 0",
        "  http-request set-var(txn.t0) date(0,us)",
        f"  http-request set-var(txn.id) req.fhdr(x-request-id) if {{ req.fhdr(x-request-id) -m reg '{_REQUEST_ID}' }}",
        f"  acl traced req.fhdr(traceparent) -m reg '{_TRACEPARENT}'",
        "  http-request set-var(txn.u) uuid() if !{ var(txn.id) -m found } || !traced",
        f'  http-request set-var-fmt(txn.u) "{_DIGITS}" if {{ var(txn.u) -m found }}',
        "  http-request set-var(txn.id) var(txn.u) if !{ var(txn.id) -m found }",
        # Unusual requests go to the gateway process, which refuses what two servers could interpret differently.
        "  acl odd req.ver 1.0",
        "  acl odd path_sub -i /. %2e %2f %5c \\\\",
        "  acl odd req.fhdr(transfer-encoding) -m found",
        "  acl odd req.fhdr(expect) -m found",
        "  acl odd req.fhdr(upgrade) -m found",
        f"  acl odd req.fhdr(content-length),length gt {len(str(most_body))}",
        f"  acl odd req.hdr_val(content-length) gt {most_body}",
        f"  acl odd url_len gt {LONGEST_TARGET}",
        "  acl odd req.fhdr_cnt(host) gt 1",
        "  acl odd req.fhdr_cnt(connection) gt 1",
        "  acl odd req.fhdr_cnt(x-forwarded-for) gt 1",
        *(_GUARDED if is_guarded else ()),
        # The path of a service itself, without a slash.
        f"  acl odd path,concat(/),map_str({paths}) -m found",
        "  acl origin_form url_beg /",
        f"  acl sound_host req.fhdr(host) -m reg '{_HOST}'",
        "  acl has_connection req.fhdr(connection) -m found",
        "  acl usual_connection req.fhdr(connection) -m str -i keep-alive close",
        f"  http-request set-var(txn.h) req.fhdr(host),host_only,lower,map_str({hosts}) if origin_form sound_host",
        "  http-request set-var(txn.b) var(txn.h) if { var(txn.h) -m found }",
        f"  http-request set-var(txn.b) path,map_beg({paths}) if origin_form sound_host !{{ var(txn.h) -m found }}",
        "  http-request unset-var(txn.b) if odd || has_connection !usual_connection",
        *(["  http-request unset-var(txn.b) if !local_host"] if is_guarded else []),
        "  use_backend %[var(txn.b)] if { var(txn.b) -m found }",
        f"  default_backend {GATEWAY}",
        *_errors("the gateway"),
        f"backend {GATEWAY}",
        "  http-request set-log-level silent",
        f"  timeout server {_ms(longest_s + GATEWAY_MORE_S)}",
        f"  server gateway unix@{GATEWAY_SOCKET} send-proxy",
        *_errors("the gateway"),
    ]
    for name, service in services.items():
        lines += _backend(name, service, servers.get(service.backend, {}), trusted)
    return "\n".join(lines) + "\n"


def places(route: ServiceRoute) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the keys of a service in the map of hosts and in the map of path prefixes."""
    return route.hosts, () if route.path is None else (f"{route.path}/",)


def add_server(backend: str, server: str, place: str) -> Sequence[str]:
    """Return the commands that add a replica to a running haproxy."""
    return (
        f"add server {backend}/{server} {place} {CHECK}",
        f"enable health {backend}/{server}",
        f"set server {backend}/{server} state ready",
    )


def _backend(name: str, service: ProxiedService, servers: Mapping[str, str], trusted: Sequence[str]) -> list[str]:
    believed = "trusted " if trusted else "FALSE "
    by_path = "!{ var(txn.h) -m found }"
    prefix = service.path or ""
    sound = f"{{ req.fhdr(traceparent) -m reg '{_TRACEPARENT}' }}"
    gone = ("keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer",
            "x-forwarded-prefix", "x-fairlead-shadow")  # fmt: skip
    return [
        f"backend {service.backend}",
        "  balance leastconn",
        "  option http-buffer-request",
        f"  timeout server {_ms(service.timeout_s)}",
        *([f"  acl trusted src {' '.join(trusted)}"] if trusted else []),
        *(
            f"  http-request set-header {field} {value} unless {believed}{{ req.fhdr({field.lower()}) -m found }}"
            for field, value in (("X-Forwarded-Host", "%[req.fhdr(host)]"), ("X-Forwarded-Proto", "http"))
        ),
        *(f"  http-request del-header {field}" for field in gone),
        "  http-request del-header _ -m sub",
        *(
            [
                f"  http-request set-path %[path,bytes({len(prefix)})] if {by_path}",
                f"  http-request set-header X-Forwarded-Prefix {prefix} if {by_path}",
            ]
            if prefix
            else []
        ),
        "  http-request set-header X-Request-Id %[var(txn.id)]",
        '  http-request set-header X-Forwarded-For "%[req.fhdr(x-forwarded-for,1)], %[src]" '
        "if { req.fhdr(x-forwarded-for) -m found }",
        "  http-request set-header X-Forwarded-For %[src] if !{ req.fhdr(x-forwarded-for) -m found }",
        f"  http-request del-header tracestate if !{sound}",
        f"  http-request set-header traceparent 00-%[var(txn.u)]-%[var(txn.u),bytes(16,16)]-01 if !{sound}",
        "  http-response capture res.fhdr(content-length) id 0",
        "  http-response del-header keep-alive",
        "  http-response set-header X-Request-Id %[var(txn.id)]",
        *_errors(f"a replica of {name}", f"within {service.timeout_s:g} s"),
        *(f"  server {server} {place} {CHECK}" for server, place in servers.items()),
        f"  server gateway unix@{FALLBACK_SOCKET} backup send-proxy",
    ]


def _errors(who: str, in_time: str = "in time") -> list[str]:
    texts = {
        400: "the request is malformed, or its head is too long",
        408: "the request did not come in time",
        500: f"{who} failed",
        502: f"{who} ended the connection without a sound answer; it may have begun the request",
        503: f"{who} took no connection",
        504: f"{who} did not answer {in_time}",
    }
    more = {503: " hdr Retry-After 1"}
    return [
        f"  http-error status {status} content-type application/json lf-string "
        f'\'{{"error":"{text}","request_id":"%[var(txn.id)]"}}\' hdr X-Request-Id %[var(txn.id)]'
        f"{more.get(status, '')}"
        for status, text in texts.items()
    ]


def _ms(seconds: float) -> str:
    return f"{max(1, round(min(seconds, 2_000_000.0) * 1e3))}ms"
