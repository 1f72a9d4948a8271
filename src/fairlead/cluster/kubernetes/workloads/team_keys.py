"""Reads the keys by which requests reach a team's endpoints, from the team's ConfigMap."""

import logging

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import Object
from fairlead.frozen import dataclass
from fairlead.state.access_keys import MOST_KEYS, AccessKey, kept_keys, with_uses
from fairlead.untrusted_json import moment, parse_object, text

log = logging.getLogger(__name__)

MOST_KEY_BYTES = 4096
MOST_USES_BYTES = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamKeys:
    """The keys that a team has created; ``uid`` is that of the ConfigMap."""

    key: str
    version: int
    uid: str
    keys: tuple[AccessKey, ...]


def read_keys(keys: Object) -> TeamKeys:
    """Read the keys of a team from its ConfigMap; invalid ones are skipped, and the newest of more than it may have."""
    metadata = keys["metadata"]
    team = metadata["namespace"]
    parsed = []
    for name, content in (keys.get("data") or {}).items():
        try:
            record = parse_object(content, max_bytes=MOST_KEY_BYTES)
        except ValueError as error:
            log.warning("%s of %s in %s is no key: %s", name, metadata["name"], team, error)
            continue
        expires_at = moment(record.get("expires_at"))
        if expires_at is None and record.get("expires_at") is not None:
            log.warning("%s of %s in %s is no key: expires_at is no time", name, metadata["name"], team)
            continue  # a key whose end cannot be read must not be valid for ever
        parsed.append(
            AccessKey(
                team=team,
                name=name,
                sha256=text(record.get("sha256"), 100) or "",
                created_at=moment(record.get("created_at")) or 0.0,
                expires_at=expires_at,
            )
        )
    valid = [key for key in parsed if is_hash(key.sha256)]
    if len(valid) > MOST_KEYS:
        log.warning("team %s has %d keys in %s; the oldest %d count", team, len(valid), metadata["name"], MOST_KEYS)
    return TeamKeys(
        key=f"{team}/{metadata['name']}",
        version=int(metadata["resourceVersion"]),
        uid=str(metadata.get("uid") or ""),
        keys=with_uses(kept_keys(valid), read_uses((metadata.get("annotations") or {}).get(names.KEY_USES))),
    )


def read_uses(annotation: object) -> dict[str, float]:
    """Return when keys were last used, by their hashes; what cannot be read is left out."""
    try:
        epochs = parse_object(text(annotation, MOST_USES_BYTES) or "{}", max_bytes=MOST_USES_BYTES)
    except ValueError:
        return {}
    uses = {digest: moment(epoch) for digest, epoch in epochs.items() if is_hash(digest)}
    return {digest: epoch for digest, epoch in uses.items() if epoch is not None}


def is_hash(text: str) -> bool:
    """Return whether a text may be the hash of a key."""
    return len(text) == 64 and set(text) <= set("0123456789abcdef")
