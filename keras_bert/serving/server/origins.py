"""Rejects requests that a web page of another site makes through the user's browser.

A page can send requests to a server on the user's own machine in two ways: its domain name resolves
to 127.0.0.1 (DNS rebinding), which the Host header shows, or it sends a form or plain text, for
which the browser does not ask the server first (no CORS preflight request).
"""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from aiohttp import web

from keras_bert.serving.server.errors import RestError


def check_origin(request: web.Request, allowed_hosts: Collection[str]) -> None:
    """Checks the Host header, and the content type of POST requests from another site.

    A name in the Host header must be in `allowed_hosts`, unless `allowed_hosts` contains "*".
    IP addresses, `localhost` and `*.localhost` are always allowed, because no other site can have
    these names.

    Raises:
        RestError: status 403 for a host that is not allowed; 415 for a POST request from another
            site whose content type is not JSON.
    """
    host = _host_name(request.headers.get("Host", ""))
    if host is None or not ("*" in allowed_hosts or host in allowed_hosts or _is_local(host)):
        raise RestError(
            403,
            f"The Host header is {request.headers.get('Host', '')!r:.200}; expected an IP address, "
            "localhost, or a name in the server's --allowed_hosts",
        )
    origin = request.headers.get("Origin")
    is_same = origin is None or origin.partition("://")[2] == request.headers.get("Host")
    if not is_same and request.method == "POST" and request.content_type != "application/json":
        raise RestError(
            415,
            f"The request comes from the site {origin!r:.200} with Content-Type: "
            f"{request.content_type!r:.200}; expected application/json",
        )


def _host_name(header: str) -> str | None:
    """Returns the host in a Host header, in lower case without the port; None if invalid."""
    try:
        parts = urlsplit(f"//{header}")
        parts.port  # noqa: B018  Raises a ValueError if the port is invalid.
    except ValueError:
        return None
    is_host = parts.netloc == header and "@" not in header and parts.hostname
    return parts.hostname.removesuffix(".") if is_host else None


def _is_local(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
