"""What is believed, asked or let in by its labels has to be in a namespace of administrators too."""

import pytest

from fairlead.cluster.kubernetes.manifests.install import InstallSettings, render_install
from fairlead.cluster.kubernetes.system_namespaces import DEFAULT, SystemNamespaces
from fairlead.cluster.prometheus import QueryFailed, ask_if_allowed
from fairlead.specs.serving import PrometheusQuery

SYSTEM = SystemNamespaces(names=(*DEFAULT, "metrics"), prometheus_hosts=("prometheus.example.com", "10.1.2.3"))


@pytest.mark.parametrize(
    "url",
    [
        "http://prometheus.monitoring:9090",
        "http://prometheus.metrics.svc:9090/",
        "https://prometheus.monitoring.svc.cluster.local",
        "http://prometheus:9090",
        "https://prometheus.example.com/prefix",
        "http://10.1.2.3:9090",
    ],
)
def test_a_prometheus_of_administrators_may_be_asked(url: str) -> None:
    assert SYSTEM.prometheus_problem(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "http://prometheus.my-team.svc:9090",
        "http://prometheus.my-team:9090",
        "http://169.254.169.254/latest",
        "http://localhost:8080",
        "http://127.0.0.1:8080",
        "http://[::1]:8080",
        "https://10.96.0.1",
        "http://monitoring.evil.example",
        "http://x.monitoring.evil.example",
        "http://prometheus.example.com.evil.example",
        "http://2130706433:8080",
        "http://0x7f000001.monitoring",
    ],
)
def test_another_host_is_not_asked_and_the_remedy_is_named(url: str) -> None:
    with pytest.raises(QueryFailed, match="ask an administrator to allow it with `fairlead install --prometheus-host"):
        ask_if_allowed(SYSTEM.prometheus_problem, PrometheusQuery(url=url, query="q", target=1.0))


def test_the_operators_own_network_leads_to_pods_of_these_namespaces_alone() -> None:
    objects = render_install(InstallSettings(image="i", system=SYSTEM))
    (policy,) = (each for each in objects if each["kind"] == "NetworkPolicy")
    chosen = [place for rule in policy["spec"]["egress"] for place in rule.get("to", ())]
    assert len(chosen) == 4
    for each in chosen:
        (expression,) = each["namespaceSelector"]["matchExpressions"]
        assert (expression["operator"], expression["values"]) == ("In", list(SYSTEM.names))


def test_an_installation_passes_on_what_is_more_than_usual() -> None:
    def args(system: SystemNamespaces) -> list[str]:
        objects = render_install(InstallSettings(image="i", system=system))
        (deployment,) = (each for each in objects if each["kind"] == "Deployment")
        found: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        return found

    usual = args(SystemNamespaces())
    assert "--system-namespace" not in usual
    assert args(SYSTEM) == [
        *usual,
        *("--system-namespace", "metrics"),
        *("--prometheus-host", "prometheus.example.com", "--prometheus-host", "10.1.2.3"),
    ]


def test_no_policy_lets_in_or_out_by_labels_in_every_namespace() -> None:
    """Such a selector chooses whoever writes the label; only ports that anybody may reach are open to all."""
    from fairlead.cluster.kubernetes.manifests.gateway import render_gateway
    from fairlead.cluster.kubernetes.manifests.network_policies import NetworkSettings, render_run_policy
    from fairlead.cluster.kubernetes.manifests.network_policies import render_team_policies as of_team
    from fairlead.cluster.kubernetes.manifests.page import render_page
    from fairlead.specs.engines import Engine
    from tests.kubernetes.builders import a_training, a_workload

    made = [
        *render_install(InstallSettings(image="i", gateways=1, page=True)),
        *render_gateway("i", "fairlead-system", 1),
        *render_page("i", "fairlead-system", 1),
        *of_team("team", NetworkSettings()),
        render_run_policy(a_workload(a_training(engine=Engine.RAYJOB, image="i"))),
        render_run_policy(a_workload(a_training())),
    ]
    policies = [each for each in made if each["kind"] == "NetworkPolicy"]
    assert len(policies) > 5
    for policy in policies:
        rules = (*policy["spec"].get("ingress", ()), *policy["spec"].get("egress", ()))
        peers = [peer for rule in rules for side in ("from", "to") for peer in rule.get(side, ())]
        assert [each for each in peers if each.get("podSelector") and each.get("namespaceSelector") == {}] == []


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "127.0.0.1", "::1", "fe80::1%lo", "::ffff:127.0.0.1", "0.0.0.0"]
)
def test_a_name_that_leads_to_this_machine_or_its_link_is_not_connected_to(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name servers answer as they like, and search domains of nodes complete a single label."""
    resolved: list[str] = []

    def resolve(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        resolved.append(host)
        return [(None, None, None, "", (address, port))]

    def connect(*_: object) -> None:
        raise AssertionError("it was connected to")

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    monkeypatch.setattr("socket.create_connection", connect)
    for url in ("http://metadata", "https://prometheus.example.com"):
        with pytest.raises(QueryFailed, match="which is no Prometheus server's"):
            ask_if_allowed(SYSTEM.prometheus_problem, PrometheusQuery(url=url, query="q", target=1.0))
    assert resolved == ["metadata", "prometheus.example.com"]


def test_the_address_that_was_checked_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    connected: list[object] = []

    def connect(address: object, *_: object) -> None:
        connected.append(address)
        raise OSError("refused")

    answers = iter(["10.1.1.1", "169.254.169.254"])
    monkeypatch.setattr("socket.getaddrinfo", lambda _host, port, **_: [(None, None, None, "", (next(answers), port))])
    monkeypatch.setattr("socket.create_connection", connect)
    with pytest.raises(QueryFailed, match="refused"):
        ask_if_allowed(SYSTEM.prometheus_problem, PrometheusQuery(url="http://prometheus:9090", query="q", target=1.0))
    assert connected == [("10.1.1.1", 9090)]
