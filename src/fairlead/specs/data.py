"""Data sets of a run: where they are, and how its ranks get them. See decision 209."""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated

from fairlead.frozen import dataclass
from fairlead.specs.constraints import PATH, Limit, Text, enforce, quote
from fairlead.specs.field_types import SIZE, SectionMap
from fairlead.specs.key import Key, broken
from fairlead.specs.secret_reference import SECRET_NAME
from fairlead.specs.sections import part_of, without

DATA_MOST = 16
DATA_NAME = Text(
    max_length=30,
    pattern=r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?",
    what="a name of data; use lower-case letters, digits and dashes, such as `train`",
)
STORES = ("s3", "gs", "az", "hf", "http", "https")
"""Schemes of object stores, beside files and volumes."""
VOLUME = "pvc"
DATASET_VERSION = Text(
    max_length=50,
    pattern=r"[A-Za-z0-9](?:[-A-Za-z0-9._]*[A-Za-z0-9])?",
    what="a name of a version; use letters, digits, `-`, `.` and `_`, such as `2026-11`",
)
DATASET = re.compile(r"((?:[a-z0-9][-a-z0-9]*/)?[a-z0-9][-a-z0-9]*)(?:@([A-Za-z0-9][-A-Za-z0-9._]*))?")
"""``[TEAM/]NAME[@VERSION]``, as `from` names a Dataset: the first group, and the version."""
CREDENTIALS = "credentials"
NO_NFS = (
    "is a mount that only an administrator may make; mount it and give its path, or make a PersistentVolume of it and "
    "give its claim, pvc://CLAIM/PATH"
)
_OWN_PLACES = ("/fairlead", "/dev", "/proc", "/sys", "/etc", "/usr", "/bin", "/lib", "/var")

_SECRET = re.compile(r"://[^/]*@|[?&][^=&]*(?:key|sig|token|secret|signature|credential)[^=&]*=", re.IGNORECASE)


class DataMode(StrEnum):
    """The ways in which ranks get bytes."""

    MOUNT = "mount"
    COPY = "copy"
    CACHE = "cache"
    STREAM = "stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """One data set of a run."""

    origin: Annotated[
        str,
        Key(
            "from",
            rule=PATH,
            example="s3://bucket/imagenet/train",
            also="url uri source path bucket location claim dir directory",
            alone=True,
        ),
        "Path, name of a Dataset, or URL: s3://, gs://, az://, hf://, http(s)://, file://, in pods pvc://CLAIM/PATH.",
    ]
    mode: Annotated[
        DataMode | None,
        Key("mode", example="cache", also="access method type how strategy"),
        "`mount` a path or claim, `copy` all first, `cache` as it is read, or `stream`; mount or cache if left out.",
    ] = None
    at: Annotated[
        str | None,
        Key(
            "at",
            rule=Text(
                max_length=512,
                pattern=r"(?:/[-A-Za-z0-9._]+)+",
                what="an absolute path, such as `/data/train`; use letters, digits, `.`, `_` and `-`",
            ),
            example="/data/train",
            also="mount_path mountpath target destination to mount_point",
        ),
        "Path of a claim in pods; /data/NAME when left out.",
    ] = None
    version: Annotated[
        str | None,
        Key(
            "version",
            rule=Text(
                max_length=16,
                pattern=r"[0-9a-f]{16}",
                what="a version; it has sixteen digits of 0-9 and a-f, as `fairlead data versions` prints them",
            ),
            example="5f1c09ab27de4410",
            also="revision tag commit hash digest",
        ),
        "The version that the data must have; that of the submission when left out.",
    ] = None
    include: Annotated[
        str | None,
        Key("include", rule=Text(max_length=512), example='"*.tar"', also="pattern glob filter files match"),
        "Shell pattern for the objects' names; all of them when left out.",
    ] = None
    write: Annotated[
        bool,
        Key("write", example="true", also="writable read_only readonly rw"),
        "Mount a claim so that ranks may write to it.",
    ] = False
    credentials: Annotated[
        str | None,
        Key(
            CREDENTIALS,
            rule=Text(
                max_length=253,
                pattern=SECRET_NAME,
                what="the name of a secret, such as `bucket-reader`; it is set with `fairlead secrets set`, in pods it "
                "is a Secret of the namespace",
            ),
            example="bucket-reader",
            also="secret auth keys access_key token",
        ),
        "Secret with the store's keys by their usual names, such as AWS_ACCESS_KEY_ID; see secrets.md.",
    ] = None
    profile: Annotated[
        str | None,
        Key(
            "profile",
            rule=Text(
                max_length=128, pattern=r"[A-Za-z0-9][-A-Za-z0-9._]*", what="the name of a profile, such as `research`"
            ),
            example="research",
            also="account aws_profile identity",
        ),
        "Profile of the AWS tools where ranks run, in place of `credentials`; their environment decides without both.",
    ] = None
    rate: Annotated[
        int | None,
        Key("rate", SIZE, Limit(low=1, high=10**15, whole=True), example="100MB", also="throughput bandwidth speed"),
        "Bytes that the run takes in a second at full speed, by which `plan` says how busy its GPUs will be.",
    ] = None
    dataset: Annotated[
        str | None,
        Key(
            "dataset",
            rule=Text(max_length=152, pattern=DATASET.pattern, what="a Dataset, such as `imagenet@2026-11`"),
            example="imagenet@2026-11",
            also="name catalog registry",
        ),
        "The Dataset that `from` was at the submission, by which `compare` and `lineage` name it.",
    ] = None

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def scheme(self) -> str:
        """Return the scheme of the URL; ``file`` for a path."""
        return self.origin.partition("://")[0] if "://" in self.origin else "file"

    @property
    def way(self) -> DataMode:
        """Return ``mode`` or its default: files and claims are mounted, stores cached."""
        if self.mode is not None:
            return self.mode
        return DataMode.MOUNT if self.scheme in ("file", VOLUME) else DataMode.CACHE

    @property
    def claim(self) -> str | None:
        """Return the name of the PersistentVolumeClaim; None for any other source."""
        return self.origin.removeprefix("pvc://").partition("/")[0] if self.scheme == VOLUME else None

    def mount_path(self, name: str) -> str:
        """Return the path of the claim in pods, for the name of this data."""
        return self.at or f"/data/{name}"

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        scheme = self.scheme
        if _SECRET.search(self.origin) is not None:
            yield (
                "origin",
                "it holds credentials, which specs never do; leave them out, and name a secret by `credentials`",
            )
        elif scheme == "nfs":
            yield "origin", f"{quote(self.origin)} {NO_NFS}"
        elif scheme not in (*STORES, "file", VOLUME):
            known = ", ".join(f"{store}://" for store in (*STORES, "file", VOLUME))
            yield "origin", f"{quote(self.origin)} has an unknown scheme; give a path, or one of {known}"
        elif scheme == VOLUME and re.fullmatch(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?", self.claim or "") is None:
            yield "origin", f"{quote(self.origin)} names no claim; give pvc://CLAIM or pvc://CLAIM/PATH"
        elif scheme == VOLUME and ".." in self.origin.split("/"):
            yield "origin", f"{quote(self.origin)} leads out of the claim; leave `..` out"
        elif scheme in STORES and not self.origin.partition("://")[2].strip("/"):
            yield "origin", f"{quote(self.origin)} names nothing; give {scheme}://NAME/PATH"
        if self.mode is DataMode.MOUNT and scheme in STORES:
            yield "mode", f"a store at {scheme}:// is not mounted; give `cache`, `stream` or `copy`, or leave it out"
        if scheme != VOLUME and self.at is not None:
            yield "at", "only a claim, pvc://, is mounted at a path; leave it out, and read `run.data(NAME).path`"
        if scheme != VOLUME and self.write:
            yield "write", "only a claim, pvc://, is mounted for writing; write to `checkpoint.to`, or leave it out"
        if self.at is not None and any(self.at == place or self.at.startswith(f"{place}/") for place in _OWN_PLACES):
            yield "at", f"{quote(self.at)} is the system's own; give another, such as /data/train"
        if self.at is not None and ".." in self.at.split("/"):
            yield "at", f"{quote(self.at)} has `..` in it; give the path itself"
        is_dataset = DATASET.fullmatch(self.origin) is not None
        if self.credentials is not None and scheme in ("file", VOLUME, "http", "https") and not is_dataset:
            yield "credentials", f"{scheme}:// takes none; leave it out"
        if self.profile is not None and scheme != "s3":
            yield "profile", f"{scheme}:// has no profiles, only s3:// has; leave it out"
        if self.profile is not None and self.credentials is not None:
            yield "profile", "keys are either in a secret, by `credentials`, or in a profile; leave one of them out"


def without_claims() -> SectionMap:
    """Return the data of kinds that run on one machine only, without the keys that are for claims in pods and plans."""
    return SectionMap(item=without(part_of(DataSource), "at", "write", "rate"), names=DATA_NAME, most=DATA_MOST)


def places_problems(data: Mapping[str, DataSource]) -> Iterable[tuple[str, str]]:
    """Yield the problems between data sets of a run: names that share a variable, or claims at the same path."""
    places: dict[str, str] = {}
    for name, source in data.items():
        if source.scheme == VOLUME:
            path = source.mount_path(name)
            if path in places:
                yield (
                    "data",
                    f"{quote(name)} and {quote(places[path])} are both at {path}; give one of them another `at`",
                )
            places[path] = name
