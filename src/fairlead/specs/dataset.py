"""The spec of a data set: a name for a place of data, its versions, and the teams that may use it. See decision 280."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Annotated, ClassVar

from fairlead.frozen import dataclass
from fairlead.specs.constraints import NAME, Limit, enforce, quote
from fairlead.specs.constraints import PATH as PLACE
from fairlead.specs.data import DATASET, DATASET_VERSION, VOLUME, DataSource
from fairlead.specs.field_types import DOLLARS, TEXT, ListField, Named
from fairlead.specs.key import Key, SameKey, broken
from fairlead.specs.training import DEFAULT_TEAM, Training
from fairlead.specs.workload import Kind

VERSIONS_MOST = 200
SHARED_MOST = 100
LATEST = "latest"
NO_PRELOAD = (
    "nothing keeps data on the nodes of a cluster beyond its runs, so none can be fetched ahead; leave it out, or "
    "apply the Dataset to a machine of your own"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetVersion:
    """One version of a data set."""

    origin: Annotated[
        str | None,
        Key(
            "from",
            rule=PLACE,
            example="s3://bucket/imagenet/2026-11",
            also="url uri source path bucket location",
            alone=True,
        ),
        "Its path or URL; `from` of the Dataset when left out.",
    ] = None
    version: Annotated[
        str | None,
        SameKey(DataSource, "version"),
        "The version that its objects have, without which its runs may get others; `fairlead data push` records it.",
    ] = None

    def __post_init__(self) -> None:
        enforce(broken(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A named data set, used as `data: {train: NAME@VERSION}`."""

    kind: ClassVar[str] = Kind.DATASET

    name: Annotated[
        str,
        Key("name", rule=NAME, example="imagenet", metadata="name"),
        "Lower-case letters, digits and dashes, at most 50.",
    ]
    origin: Annotated[
        str,
        SameKey(DataSource, "origin", {"alone": False, "example": "s3://bucket/imagenet"}),
        "Path or URL, as in `data`.",
    ]
    team: Annotated[str, SameKey(Training, "team")] = DEFAULT_TEAM
    versions: Annotated[
        Mapping[str, DatasetVersion],
        Key(
            "versions",
            Named(DATASET_VERSION, VERSIONS_MOST),
            example="{2026-11: s3://bucket/imagenet/2026-11}",
            also="tags version releases snapshots",
        ),
        "Its versions by name; NAME alone is the last of them in natural order, or `from` where there is none.",
    ] = field(default_factory=dict, hash=False)
    include: Annotated[str | None, SameKey(DataSource, "include")] = None
    credentials: Annotated[str | None, SameKey(DataSource, "credentials")] = None
    profile: Annotated[str | None, SameKey(DataSource, "profile")] = None
    egress_price: Annotated[
        float | None,
        Key("egress_price", DOLLARS, Limit(low=0, high=1000), example="0.09", also="egress price cost_per_gb"),
        "Dollars for each GB that leaves its store, which `plan` adds up.",
    ] = None
    share: Annotated[
        tuple[str, ...],
        Key("share", ListField(item=TEXT, rule=NAME, most=SHARED_MOST), example="[vision]", also="teams shared_with"),
        "Other teams that may use it; only its own when left out.",
    ] = ()
    preload: Annotated[
        bool,
        Key("preload", example="true", also="warm prefetch cache"),
        "Fetch its newest version into the cache of this machine when it is applied or pushed.",
    ] = False

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def newest(self) -> str | None:
        """Return the name of the newest version: the last in natural order, where 10 follows 9; None without any."""
        return max(self.versions, key=_natural, default=None)

    def is_for(self, team: str) -> bool:
        """Return whether a team may use it."""
        return team == self.team or team in self.share

    def source(self, version: str | None = None) -> DataSource:
        """Return where the data of a version is, with the hash that it has; of the newest one for None.

        Raises:
            KeyError: There is no such version.
        """
        chosen = self.newest if version in (None, LATEST) else version
        known = DatasetVersion() if chosen is None else self.versions[chosen]
        return DataSource(
            origin=known.origin or self.origin,
            version=known.version,
            include=self.include,
            credentials=self.credentials,
            profile=self.profile,
            dataset=self.name if chosen is None else f"{self.name}@{chosen}",
        )

    def pushed(self, version: str, digest: str) -> "Dataset":
        """Return the data set with a version whose objects are at ``place_of`` of it."""
        known = DatasetVersion(origin=self.place_of(version), version=digest)
        return replace(self, versions={**self.versions, version: known})

    def place_of(self, version: str) -> str:
        """Return the URL of a version, existing or not: its own, or the folder of its name below ``from``."""
        known = self.versions.get(version)
        return known.origin if known is not None and known.origin else f"{self.origin.rstrip('/')}/{version}"

    def __str__(self) -> str:
        return f"{self.team}/{self.name}"

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        if DATASET.fullmatch(self.origin) is not None and "/" not in self.origin and "@" in self.origin:
            yield "origin", f"{quote(self.origin)} is a Dataset itself; give the path or URL of the data"
        for name in self.versions:
            if (problem := DATASET_VERSION.problem(name)) is not None:
                yield "versions", problem
            elif name == LATEST:
                yield "versions", f"`{LATEST}` is the newest one by itself; give another name, such as 2026-11"
        if self.team in self.share:
            yield "share", f"{quote(self.team)} is its own team; leave it out"
        places = {self.origin, *(version.origin for version in self.versions.values() if version.origin)}
        for place in sorted(places):
            # Validated by its own rules, which raise for a place that no run could use.
            scheme = DataSource(
                origin=place, include=self.include, credentials=self.credentials, profile=self.profile
            ).scheme
            if scheme == VOLUME and self.share:
                yield (
                    "share",
                    "a claim is in the namespace of its team; leave it out, or put the data into a store",
                )


def select(datasets: Sequence[Dataset], reference: str, team: str) -> Dataset | None:
    """Return the data set that ``[TEAM/]NAME`` means to a team, its own before those shared with it; None if none is.

    Raises:
        ValueError: Several teams share one of that name; has the rest of a sentence.
    """
    owner, _, name = reference.rpartition("/")
    fitting = [dataset for dataset in datasets if dataset.name == name and owner in ("", dataset.team)]
    own = [dataset for dataset in fitting if dataset.team == team]
    if own or len(fitting) < 2:
        return next(iter(own or fitting), None)
    choices = " or ".join(sorted(f"{dataset.team}/{dataset.name}" for dataset in fitting))
    raise ValueError(f"several teams share a Dataset {name}; give {choices}")


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Return a key by which texts sort as people count: v9 before v10."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.findall(r"[0-9]+|[^0-9]+", name)]
