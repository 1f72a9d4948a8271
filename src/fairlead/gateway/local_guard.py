"""Guards endpoints on loopback from web sites in this user's browser and from other users of the machine.

Endpoints with `access` are guarded by their keys, which no site and no other user has. For all others the name in
`Host` has to mean this machine, no other site's page may have sent the request, and the client's process has to be this
user's or root's.
"""

from collections.abc import Set as AbstractSet

from fairlead.gateway.messages import HttpError, RequestHead
from fairlead.loopback import is_local_name, is_local_origin
from fairlead.runtime.peer_users import is_known_user

_NEEDS_ACCESS = "give the endpoint `access`, and it a key"


class LocalGuard:
    """The guard of a gateway that listens on loopback.

    Args:
        names: Further hosts under which it is known, such as that of a reverse proxy on this machine.
    """

    def __init__(self, names: AbstractSet[str] = frozenset()) -> None:
        self.names = names
        self._known: set[bytes] = set()  # hosts that were looked at before and are accepted

    def check_host(self, request: RequestHead, routed: AbstractSet[bytes]) -> None:
        """Refuse a request to another name.

        Args:
            routed: Hosts of the routes.

        Raises:
            HttpError: The host is neither this machine's nor one that was configured.
        """
        host = request.host
        if host in self._known or not host or host in routed:
            return
        name = host.decode()
        if not is_local_name(name) and name not in self.names:
            raise HttpError(
                421,
                f"this gateway answers to localhost, 127.0.0.1 and NAME.localhost, not to {name}: "
                "set FAIRLEAD_GATEWAY_HOSTS to the names that lead here",
            )
        if len(self._known) < 1000:
            self._known.add(host)

    def check_site(self, request: RequestHead, origins: AbstractSet[str]) -> None:
        """Refuse what another site's page sent.

        Raises:
            HttpError: Its Origin is not this machine's, or its Fetch metadata tell that it crosses sites.
        """
        single = request.single
        origin = single.get(b"origin")
        if origin is not None:
            if self.is_own_origin(origin, origins):
                return
            raise HttpError(403, f"pages of other sites may not use this endpoint: {_NEEDS_ACCESS}")
        if single.get(b"sec-fetch-site") == b"cross-site" and not (
            single.get(b"sec-fetch-mode") == b"navigate" and single.get(b"sec-fetch-dest") == b"document"
        ):
            raise HttpError(403, f"pages of other sites may not load anything from this endpoint: {_NEEDS_ACCESS}")

    def check_user(self, peer: tuple[str, int] | None, own: tuple[str, int] | None) -> None:
        """Refuse a connection of another user.

        Raises:
            HttpError: The process at its other end is neither this user's nor root's.
        """
        if not is_known_user(peer, own):
            raise HttpError(403, f"this endpoint is for the user who started it; for others {_NEEDS_ACCESS}")

    def is_own_origin(self, origin: bytes, origins: AbstractSet[str]) -> bool:
        """Return whether a page of this origin is one of this machine, or may use the endpoint."""
        text = origin.decode("latin-1").lower()
        return text in origins or is_local_origin(text)
