"""The ConfigMap by which members of a namespace see the cluster without rights to it, and its reader.

Members may write ConfigMaps of their namespace themselves, so its content is read within bounds, and can only mislead
those who read it there.
"""

import base64
import json
import zlib
from typing import Any

from fairlead.cluster.kubernetes.names import CONTENT, MANAGED_BY, MANAGER
from fairlead.cluster.records import build, plain
from fairlead.errors import ClusterError, FairleadError
from fairlead.policy.queue.shared_view import OwnPart, SharedState
from fairlead.untrusted_json import parse_object

NAME = "fairlead-view"
STATE, PART, FORM = "state", "part", "form"
# The form of both; a reader of another one ignores them.
VERSION = "1"
# An API server takes objects of 1 MiB and etcd of 1.5 MiB; base64 adds a third.
MOST_PACKED_BYTES = 700_000
MOST_STATE_BYTES, MOST_PART_BYTES = 64 * 1024 * 1024, 256 * 1024


class _UnreadableViewError(ClusterError):
    """The ConfigMap is not what an operator of this version writes."""


def pack_state(state: SharedState) -> str | None:
    """Return the part of all teams, as in ``binaryData``; None if it is too large for an object."""
    packed = zlib.compress(json.dumps(plain(state), separators=(",", ":")).encode(), 6)
    return None if len(packed) > MOST_PACKED_BYTES else base64.b64encode(packed).decode()


def render_view(namespace: str, packed: str, part: OwnPart) -> dict[str, Any]:
    """Render the ConfigMap of a namespace."""
    own = json.dumps(plain(part), separators=(",", ":"))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": namespace, "labels": {MANAGED_BY: MANAGER, CONTENT: "view"}},
        "data": {FORM: VERSION, PART: own if len(own) <= MOST_PART_BYTES else json.dumps(plain(OwnPart()))},
        "binaryData": {STATE: packed},
    }


def read_view(content: dict[str, Any]) -> tuple[SharedState, OwnPart]:
    """Return both parts.

    Raises:
        ClusterError: It holds something else.
    """
    try:
        data = content.get("data") or {}
        if data.get(FORM) != VERSION:
            raise ValueError(f"its form is {str(data.get(FORM))[:20]!r}, and this version reads {VERSION!r}")
        packed = base64.b64decode(content["binaryData"][STATE], validate=True)
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(packed, MOST_STATE_BYTES)
        if unpacking.unconsumed_tail or not unpacking.eof:
            raise ValueError(f"its state has more than {MOST_STATE_BYTES} bytes, or ends early")
        state = build(SharedState, parse_object(text, max_bytes=MOST_STATE_BYTES))
        part = build(OwnPart, parse_object(data[PART], max_bytes=MOST_PART_BYTES))
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error, FairleadError) as error:
        raise _UnreadableViewError(f"the ConfigMap {NAME} cannot be read: {error}") from error
    return state, part
