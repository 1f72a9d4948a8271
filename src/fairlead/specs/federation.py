"""The spec of a federation: a server and a client at each site, which train a model without moving the sites' data."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from typing import Annotated, ClassVar

from fairlead.frozen import dataclass
from fairlead.specs.aggregation import SITES_MOST, AggregationStrategy, Aggregator, Privacy
from fairlead.specs.constraints import NAME, PATH, Limit, Text, enforce, quote
from fairlead.specs.field_types import DOLLARS, DURATION, SHARE, SIZE, Named, or_auto
from fairlead.specs.key import Key, SameKey, broken
from fairlead.specs.overlay import Overlay
from fairlead.specs.resources import Resources
from fairlead.specs.secret_reference import SecretReference, secrets_problems
from fairlead.specs.serving_sites import ServingSite
from fairlead.specs.training import DEFAULT_TEAM, ENV, Retry, Training, env_problems
from fairlead.specs.workload import Kind

SERVER = "server"
"""The name of the server's run within the federation."""
MAX_ROUNDS = 100_000
DAY_MINUTES = 24 * 60
VARIABLE = "FEDERATION"
OWN_VARIABLES = (VARIABLE, "FEDERATION_SITE", "FEDERATION_DATA", "FEDERATION_REPORT", "FEDERATION_STATE")
SERVER_PROGRAM = "python -m fairlead.runtime.federation.server"
SITE_PROGRAM = "python -m fairlead.runtime.federation.site"
POD_SITE_PROGRAM = f"PYTHONPATH= {SITE_PROGRAM}"
"""In pods the bundled runtime comes first in PYTHONPATH, and has no programs of federations; the image has."""
CLIENT_OF = "federation"
"""The label of a client in another cluster, of which the value is the uid of its federation."""
RETRIES = 3
AWAY_S = 600.0


def _sites_or_share(text: str) -> float:
    """Return a number of sites, at least 1, or a share below 1."""
    value: float = SHARE.parse(text)
    if text.endswith("%") and value >= 1:
        raise ValueError("is all sites; leave it out for that")
    return value


SITES_OR_SHARE = replace(SHARE, what="a number of sites, or a share such as 20%", parse=_sites_or_share)
WAYS = ("to", "from")
"""Ways of bytes, as the server sees them: its run has metrics named ``to.SITE`` and ``from.SITE``."""
CROSSED_MOST = 200
"""Most sites of which the bytes of each round are recorded."""
PROBLEMS = {
    "not_finite": "it has a value that is NaN or infinite",
    "misshapen": "its arrays are not those of the model",
    "bad_weight": "its number of examples is no possible one",
    "unreadable": "its arrays cannot be read",
}
"""Sentences for what keeps an update out of its round, by the word that the server reports."""
LARGEST_PORT = 65_535
ADDRESS = Text(
    max_length=259,
    pattern=r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?:[1-9][0-9]{0,4}",
    what="an address; give a host and a port, such as `fl.example.com:443`",
)
WINDOW = Text(
    max_length=11,
    pattern=r"(?:[01][0-9]|2[0-3]):[0-5][0-9]-(?:[01][0-9]|2[0-3]):[0-5][0-9]",
    what="a window; give two times of day in UTC, such as `22:00-06:00`",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteExpectation:
    """Expectations of rounds at a site, by which ``fairlead plan`` and ``auto`` simulate them."""

    train_s: Annotated[
        float,
        Key("train", DURATION, Limit(low=0.001, high=7 * 86400.0), example="40s", also="time duration seconds compute"),
        "Typical time of a round's training there.",
    ]
    spread: Annotated[
        float,
        Key("spread", SHARE, Limit(low=0, high=3), example="30%", also="jitter variation deviation sigma"),
        "How much that time varies from round to round: the standard deviation of its logarithm.",
    ] = 0.2
    link: Annotated[
        int | None,
        Key(
            "link",
            SIZE,
            Limit(low=1, high=2**50, whole=True),
            example="2Mi",
            also="bandwidth network upload download bytes_per_second",
        ),
        "Bytes a second between the site and the server, with `model_size`; transfers take no time when left out.",
    ] = None
    available: Annotated[
        float,
        Key("available", SHARE, Limit(low=0.01, high=1), example="90%", also="availability uptime reliability"),
        "Share of the rounds in which it answers at all.",
    ] = 1.0
    examples: Annotated[
        int,
        Key("examples", rule=Limit(low=1, high=10**12, whole=True), example="500", also="num_examples rows weight"),
        "Number of its examples, in relation to those of other sites.",
    ] = 1
    price: Annotated[
        float | None,
        Key(
            "price",
            DOLLARS,
            Limit(low=0, high=1e6),
            example="1.20",
            also="price_per_hour cost dollars_per_hour hourly_price",
        ),
        "Dollars an hour of the client's run.",
    ] = None

    def __post_init__(self) -> None:
        enforce(broken(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A place with data of its own, at which a client of the federation runs."""

    context: Annotated[
        str | None,
        SameKey(ServingSite, "context"),
        "Context of the kubeconfig, of the cluster in which the client runs; this machine when left out.",
    ] = None
    namespace: Annotated[
        str | None,
        SameKey(ServingSite, "namespace"),
        "Namespace of the client there; the context's own when left out.",
    ] = None
    home: Annotated[
        str | None,
        SameKey(ServingSite, "home"),
        "State directory of another local cluster of this machine, in place of `context`.",
    ] = None
    image: Annotated[
        str | None,
        SameKey(Training, "image"),
        "Image of the client's pod, with `context`: it has the app's packages and `fairlead[federated]`.",
    ] = None
    kubernetes: Annotated[
        Overlay,
        SameKey(Training, "kubernetes"),
        "Fields of Kubernetes that are merged into the client's pod, such as a volume with the data.",
    ] = field(default_factory=Overlay)
    data: Annotated[
        str | None,
        Key("data", rule=PATH, example="/data/hospital-a", also="dataset path data_path partition"),
        "Data of the site, which its client gets as `data` of the node's configuration and in `FEDERATION_DATA`.",
    ] = None
    resources: Annotated[
        Resources,
        Key("resources", example="{cpu: 2}", also="resource requests limits client_resources"),
        "Resources of the client's run.",
    ] = field(default_factory=Resources)
    window: Annotated[
        str | None,
        Key("window", rule=WINDOW, example='"22:00-06:00"', also="when hours schedule times"),
        "Time of day in UTC in which the site takes part; always when left out.",
    ] = None
    expect: Annotated[
        SiteExpectation | None,
        Key("expect", example="{train: 40s, link: 2Mi}", also="expected expectation estimate profile"),
        "What `fairlead plan` and `auto` simulate rounds by.",
    ] = None

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def is_elsewhere(self) -> bool:
        """Return whether its client runs in another cluster than the server."""
        return self.context is not None or self.home is not None

    def is_open(self, now: float) -> bool:
        """Return whether its window is open; ``now`` in Unix seconds."""
        if self.window is None:
            return True
        begins, ends = self._minutes()
        minute = now / 60.0 % DAY_MINUTES
        return begins <= minute < ends if begins < ends else minute >= begins or minute < ends

    def changes_at(self, now: float) -> float | None:
        """Return when its window next opens or closes, in Unix seconds; None if it has none."""
        if self.window is None:
            return None
        minute = now / 60.0 % DAY_MINUTES
        return now + 60.0 * min((edge - minute) % DAY_MINUTES or DAY_MINUTES for edge in self._minutes())

    @property
    def minutes(self) -> tuple[int, int] | None:
        """Return the minutes of the day at which its window opens and closes; None without one."""
        return None if self.window is None else self._minutes()

    def _minutes(self) -> tuple[int, int]:
        assert self.window is not None
        begins, ends = (int(text[:2]) * 60 + int(text[3:]) for text in self.window.split("-"))
        return begins, ends

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        if self.context is not None and self.home is not None:
            yield "context", "a site is a `context` of the kubeconfig or a `home` here, and both are given; give one"
        if self.home is not None and not self.home.startswith("/"):
            yield "home", f"{quote(self.home)} is relative; give an absolute path"
        if self.context is not None and self.image is None:
            yield "image", "its client runs in a pod; give an image with the app's packages and `fairlead[federated]`"
        for name in ("namespace", "image", "kubernetes"):
            if self.context is None and getattr(self, name) not in (None, Overlay()):
                yield name, "it is for pods of another cluster; give its `context`, or leave it out"
        if self.window is not None and WINDOW.problem(self.window) is None and len(set(self._minutes())) == 1:
            yield "window", f"{quote(self.window)} begins when it ends; give two times, or leave it out for always"


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """A model that several sites train together: only updates of the model leave a site, never its data.

    Attributes:
        sample_auto, deadline_auto: They are chosen at submission. Not keys.
        server_run: Run of the server, as it was admitted. Not a key.
        site_runs: Runs of the clients by site, likewise.
    """

    kind: ClassVar[str] = Kind.FEDERATION

    name: Annotated[
        str,
        Key("name", rule=NAME, example="digits", also="title id", metadata="name"),
        "Lower-case letters, digits and dashes, at most 50; so is the name with that of a site.",
    ]
    sites: Annotated[
        Mapping[str, Site],
        Key(
            "sites",
            Named(NAME, SITES_MOST),
            example="{north: {data: /data/north}, south: {data: /data/south}}",
            also="clients nodes supernodes parties silos participants",
        ),
        "The enrolled sites by name; any other is refused.",
    ]
    app: Annotated[
        str | None,
        Key("app", rule=PATH, example="digits-app", also="flower_app flwr fab application"),
        "Directory of a Flower app with its `pyproject.toml`, which is not changed.",
    ] = None
    server: Annotated[
        str | None,
        Key(
            "server",
            rule=Text(max_length=65_536, lines=True),
            example="python server.py",
            also="server_command coordinator aggregator",
        ),
        "Command of the server of another framework, with `client` in place of `app`.",
    ] = None
    client: Annotated[
        str | None,
        Key(
            "client",
            rule=Text(max_length=65_536, lines=True),
            example="python client.py",
            also="client_command site_command worker",
        ),
        "Command of each site's client, with `server`.",
    ] = None
    address: Annotated[
        str | None,
        Key(
            "address",
            rule=ADDRESS,
            example="fl.example.com:443",
            also="server_address superlink host endpoint listen",
        ),
        "Host and port at which the clients of other clusters reach the server, which listens at that port of this "
        "machine.",
    ] = None
    rounds: Annotated[
        int,
        Key(
            "rounds",
            rule=Limit(low=1, high=MAX_ROUNDS, whole=True),
            example="50",
            also="num_rounds num_server_rounds server_rounds epochs",
        ),
        "Rounds of training, in place of those that the app gives its strategy.",
    ] = 3
    min_sites: Annotated[
        int | None,
        Key(
            "min_sites",
            rule=Limit(low=1, high=SITES_MOST, whole=True),
            example="2",
            also="min_clients min_available_clients min_fit_clients min_available_nodes min_nodes quorum",
        ),
        "Updates that a round needs, without which it is repeated; all sites when left out, or all of `sample`.",
    ] = None
    sample: Annotated[
        float | None,
        Key(
            "sample",
            or_auto(SITES_OR_SHARE),
            Limit(low=1e-4, high=SITES_MOST),
            example="20%",
            also="fraction_train fraction_fit clients_per_round sites_per_round participation num_sampled_clients",
            sets=("sample_auto",),
        ),
        "Sites that train in a round, chosen at random among those connected, or their share; all when left out; "
        "`auto` simulates rounds by `expect` and chooses.",
    ] = None
    aggregate: Annotated[
        AggregationStrategy | None,
        Key("aggregate", example="{strategy: fedprox, mu: 0.1}", also="strategy aggregation aggregator algorithm"),
        "Strategy of Flower in place of the app's own; a word alone is `strategy`.",
    ] = None
    deadline_s: Annotated[
        float | None,
        Key(
            "deadline",
            or_auto(DURATION),
            Limit(low=1.0, high=7 * 86400.0),
            example="10m",
            also="round_timeout timeout deadline_s",
            sets=("deadline_auto",),
        ),
        "Time in which a site has to answer in a round; later ones join the next. The app's own when left out; `auto` "
        "simulates rounds by `expect` and chooses.",
    ] = None
    model_size: Annotated[
        int | None,
        Key(
            "model_size",
            SIZE,
            Limit(low=1, high=2**50, whole=True),
            example="40Mi",
            also="update_size size_of_model parameters_size bytes",
        ),
        "Bytes of the model, which `fairlead plan` and `auto` expect each site to load and to send in a round.",
    ] = None
    privacy: Annotated[
        Privacy | None,
        Key(
            "privacy",
            example="{epsilon: 8, delta: 1e-5, clip: 0.5}",
            also="dp differential_privacy central_dp privacy_budget",
        ),
        "Budget of differential privacy, by Flower's clipping and noise at the server.",
    ] = None
    resources: Annotated[
        Resources,
        SameKey(Training, "resources"),
        "Resources of the server's run.",
    ] = field(default_factory=Resources)
    retry: Annotated[
        Retry,
        SameKey(Training, "retry"),
        "Restarts of the server, and of each client, each by itself; 3 when left out. A number alone is `program`.",
    ] = field(default_factory=lambda: Retry(program=RETRIES))
    env: Annotated[
        Mapping[str, str],
        Key("env", ENV, example="{SEED: 1}", also="envs environment env_vars variables"),
        "Variables of the server and all clients.",
    ] = field(default_factory=dict)
    secrets: Annotated[
        tuple[SecretReference, ...],
        SameKey(Training, "secrets"),
        "Secrets of the server and all clients, as in a Training.",
    ] = ()
    workdir: Annotated[
        str | None,
        SameKey(Training, "workdir"),
        "Directory that `app` is relative to, and in which commands run; that of the spec file when left out.",
    ] = None
    team: Annotated[str, SameKey(Training, "team")] = DEFAULT_TEAM
    labels: Annotated[
        Mapping[str, str],
        SameKey(Training, "labels"),
        "Names and values of your own, which its runs have too.",
    ] = field(default_factory=dict)
    sample_auto: bool = False
    deadline_auto: bool = False
    server_run: Training | None = None
    site_runs: Mapping[str, Training] = field(default_factory=dict)

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def least_sites(self) -> int:
        """Return ``min_sites`` or its default, all sites that train in a round."""
        return self.sampled_sites if self.min_sites is None else self.min_sites

    @property
    def sampled_sites(self) -> int:
        """Return the number of sites that train in a round, at least 1."""
        if self.sample is None:
            return len(self.sites)
        return int(self.sample) if self.sample >= 1 else max(1, round(self.sample * len(self.sites)))

    @property
    def elsewhere(self) -> list[str]:
        """Return the names of the sites in other clusters."""
        return [name for name, site in self.sites.items() if site.is_elsewhere]

    @property
    def away_s(self) -> float:
        """Return the seconds for which sites that do not answer are waited for when it stops."""
        return AWAY_S if self.deadline_s is None else self.deadline_s

    def described_server(self) -> Training:
        """Return the run of the server."""
        return self._run(SERVER, SERVER_PROGRAM if self.server is None else self.server, self.resources)

    def described_site(self, name: str) -> Training:
        """Return the run of a site's client."""
        site = self.sites[name]
        if site.is_elsewhere:
            program = SITE_PROGRAM if site.context is None else POD_SITE_PROGRAM
            run = replace(self._run(name, program, site.resources), image=site.image, kubernetes=site.kubernetes)
            return replace(run, workdir=site.home, snapshot=site.context is not None)
        return self._run(name, SITE_PROGRAM if self.client is None else self.client, site.resources)

    def _run(self, name: str, command: str, resources: Resources) -> Training:
        return Training(
            name=f"{self.name}-{name}", team=self.team, run=command, resources=resources, retry=self.retry,
            env=self.env, secrets=self.secrets, workdir=self.workdir, labels=self.labels,
        )  # fmt: skip

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        yield from env_problems(self.env)
        yield from secrets_problems(self.secrets, self.env)
        for name in OWN_VARIABLES:
            if name in self.env:
                yield "env", f"{quote(name)} is set for each program by the federation; choose another name"
        programs = [self.server is not None, self.client is not None]
        if self.app is None and not all(programs):
            yield "app", "give the directory of a Flower app, or both `server` and `client`, the commands of others"
        if self.app is not None and any(programs):
            yield "app", "it has its own server and clients; leave `server` and `client` out, or `app`"
        for name in ("min_sites", "sample", "deadline_s", "aggregate", "privacy"):
            if self.app is None and getattr(self, name) is not None:
                yield name, "the `server` program decides that itself; leave it out, or give `app`"
        yield from self._auto_problems()
        yield from self._round_problems()
        yield from self._site_problems()
        yield from self._place_problems()

    def _auto_problems(self) -> Iterable[tuple[str, str]]:
        for name, key, is_auto in (
            ("sample", "sample", self.sample_auto),
            ("deadline_s", "deadline", self.deadline_auto),
        ):
            missing = [site for site, described in self.sites.items() if described.expect is None]
            if is_auto and self.app is None:
                yield name, "the `server` program decides that itself; leave it out, or give `app`"
            elif is_auto and missing:
                yield (
                    name,
                    f"`auto` simulates rounds, and {quote(missing[0])} has no `expect`; give each site one, such as "
                    f"`expect: {{train: 40s}}`, or give `{key}` a value",
                )
        if self.sample_auto and self.privacy is not None:
            yield "sample", "the noise of `privacy` follows from it; give a number of sites or a share"

    def _round_problems(self) -> Iterable[tuple[str, str]]:
        sampled = self.sampled_sites
        if self.sample is not None and self.sample >= 1:
            if self.sample != int(self.sample):
                yield "sample", f"{self.sample:g} is no number of sites; give a whole number, or a share below 100%"
            elif self.sample > len(self.sites):
                yield "sample", f"{sampled} is more than there are sites, {len(self.sites)}; give fewer"
        if self.min_sites is not None and self.min_sites > len(self.sites):
            yield "min_sites", f"{self.min_sites} is more than there are sites, {len(self.sites)}; give fewer"
        elif self.min_sites is not None and self.min_sites > sampled:
            yield (
                "min_sites",
                f"{self.min_sites} is more than train in a round, {sampled}; give fewer, or more `sample`",
            )
        private = (Aggregator.FEDAVG, Aggregator.FEDPROX)
        if self.privacy is not None and self.aggregate is not None and self.aggregate.strategy not in private:
            yield (
                "privacy",
                f"the noise of {self.aggregate.strategy} cannot be accounted, since one site can change its result by "
                "more than its share; choose fedavg or fedprox, or leave `privacy` out",
            )
        if self.aggregate is not None and self.least_sites < self.aggregate.least_updates:
            yield (
                "aggregate",
                f"{self.aggregate.strategy} needs {self.aggregate.least_updates} updates in a round, and a round "
                f"may have {self.least_sites}; raise `min_sites`, or choose fedmedian or fedtrimmedavg",
            )

    def _place_problems(self) -> Iterable[tuple[str, str]]:
        """Yield what is wrong with sites in other clusters."""
        elsewhere = self.elsewhere
        if self.app is None and elsewhere:
            yield "sites", "in other clusters they are clients of a Flower `app`; leave `context` and `home` out"
        if self.address is None:
            remote = next((name for name in elsewhere if self.sites[name].context is not None), None)
            if remote is not None:
                yield (
                    "address",
                    f"{quote(remote)} is in another cluster; give a host and a port of this machine that its pods "
                    "reach, such as `address: fl.example.com:443`",
                )
        elif not elsewhere:
            yield "address", "all sites are processes of this machine; leave it out, or give one a `context`"
        elif ADDRESS.problem(self.address) is None and int(self.address.rpartition(":")[2]) > LARGEST_PORT:
            yield "address", f"{quote(self.address)} has a port above {LARGEST_PORT}; give 1 to {LARGEST_PORT}"

    def _site_problems(self) -> Iterable[tuple[str, str]]:
        if not self.sites:
            yield "sites", "there is none; give at least one, such as `{north: {data: /data/north}}`"
        if len(self.sites) > SITES_MOST:
            yield "sites", f"{len(self.sites)} sites; give at most {SITES_MOST}"
        for name in self.sites:
            whole = f"{self.name}-{name}"
            if (problem := NAME.problem(name)) is not None:
                yield "sites", problem
            elif name == SERVER:
                yield "sites", f"{quote(name)} is the name of the server's run; choose another one"
            elif len(whole) > NAME.max_length:
                yield (
                    "sites",
                    f"the run of {quote(name)} would be named {whole}; at most {NAME.max_length} characters fit",
                )


def federation_variables(
    spec: Federation,
    server_uid: str,
    site: str | None,
    privacy: Mapping[str, float] | None = None,
    superlink: tuple[str, str] | None = None,
) -> Mapping[str, str]:
    """Return the variables of the server's program, or of a site's, which ``runtime/federation/settings.py`` reads.

    Args:
        privacy: Clip and noise of the updates, and the most rounds within the budget; None without one.
        superlink: Address of the server and its CA certificate, for a client in another cluster.
    """
    data = None if site is None else spec.sites[site].data
    chosen = spec.aggregate
    content = {
        "name": spec.name, "server_uid": server_uid, "sites": list(spec.sites), "site": site, "data": data,
        "app": spec.app, "rounds": spec.rounds, "min_sites": spec.least_sites, "deadline_s": spec.deadline_s,
        "sample": None if spec.sample is None else spec.sampled_sites,
        "aggregate": None if chosen is None else [chosen.strategy_class, dict(chosen.arguments)],
        "privacy": privacy, "address": spec.address, "superlink": superlink,
    }  # fmt: skip
    own = {"FEDERATION_SITE": site, "FEDERATION_DATA": data}
    return {VARIABLE: json.dumps(content), **{name: text for name, text in own.items() if text is not None}}


def map_runs(spec: Federation, of: Callable[[Training], Training]) -> Federation:
    """Return the federation with a function applied to the runs of its server and its sites on this machine."""
    server = of(spec.described_server() if spec.server_run is None else spec.server_run)
    here = [name for name in spec.sites if name not in spec.elsewhere]  # other clusters admit theirs
    runs = {name: of(spec.site_runs.get(name) or spec.described_site(name)) for name in here}
    return replace(spec, server_run=server, site_runs=runs)
