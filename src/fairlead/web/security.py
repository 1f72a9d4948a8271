"""Decides who may read the page, and what a browser may do with it.

The page listens on loopback and has no password, so three things stand between it and others: a name other than this
machine's in the Host header is refused (another site's page whose name was pointed here, DNS rebinding), no answer may
be read by another site (no CORS headers, same-origin policies), and on Linux a connection of another user of the
machine is refused, as the state directory is private to its user.

See decision 123.
"""

from collections.abc import Mapping

from fairlead.web.inline_assets import SCRIPT, STYLE, hash_source

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {hash_source(SCRIPT)}; style-src {hash_source(STYLE)}; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With "no-referrer" browsers say "Origin: null" of the page's own forms, as they do of another site's.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_OWN_GROUP: Mapping[str, str] = {**HEADERS, "Cross-Origin-Opener-Policy": "same-origin"}


def headers_for(request: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers of the response to a request with these headers.

    A window that another site opened is cut off from it by an opener policy, for which a browser starts a process. That
    delays the first paint, so a request from the address bar or from the page itself is answered without: no other site
    can hold its window.
    """
    return HEADERS if request.get("Sec-Fetch-Site") in ("none", "same-origin") else _OWN_GROUP


def is_own_site(headers: Mapping[str, str]) -> bool:
    """Return whether a request comes from the page itself, from the address bar or from no browser (Fetch metadata).

    Links from other sites may lead here; other sites may not embed or load anything from here.
    """
    if headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin"):
        return True
    return headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"


def is_own_form(headers: Mapping[str, str]) -> bool:
    """Return whether a form was sent by the page itself, by its Origin header, or by no browser."""
    if headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        return False
    origin = headers.get("Origin")
    return origin is None or origin.partition("://")[2] == headers.get("Host")
