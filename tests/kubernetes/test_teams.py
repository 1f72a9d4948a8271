"""What a team is on Kubernetes, whole and in a golden file."""

from fairlead.cluster.kubernetes.manifests.network_policies import (
    METADATA,
    NetworkSettings,
    render_run_policy,
    render_team_policies,
)
from fairlead.cluster.kubernetes.manifests.teams import TeamSettings, render_object_counts, render_team
from fairlead.specs.team import Quota, Team
from tests.kubernetes.builders import UID, a_workload
from tests.kubernetes.goldens import check_golden

TEAM = Team(
    name="research",
    quota=Quota(gpu_milli=16_500, cpu_milli=256_000, memory_bytes=2 * 1024**4),
    members=("ann@example.com", "ben"),
)


def test_the_objects_of_a_team_are_those_of_the_golden_file() -> None:
    check_golden("team.yaml", [*render_team(TEAM, TeamSettings()), render_object_counts(TEAM)])


def test_a_team_without_a_quota_is_bounded_in_nothing_but_critical_priority_classes_and_numbers_of_objects() -> None:
    (quota,) = (entry for entry in render_team(Team(name="open"), TeamSettings()) if entry["kind"] == "ResourceQuota")
    counts = render_object_counts(Team(name="open"))
    assert counts["metadata"]["name"] == "fairlead-objects"
    assert counts["spec"]["hard"]["count/trainings.fairlead.dev"] == "10000"
    assert set(counts["spec"]["hard"].values()) == {"10000"}
    assert quota["spec"]["hard"] == {"pods": "0"}
    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    assert (scope["scopeName"], scope["operator"]) == ("PriorityClass", "In")
    assert set(scope["values"]) == {"system-cluster-critical", "system-node-critical"}


def test_groups_and_service_accounts_are_members_by_their_names() -> None:
    account = "system:serviceaccount:ci:runner"
    team = Team(name="research", members=("ann", account), groups=("oidc:ml",))
    bound = {
        each["roleRef"]["name"]: [(of["kind"], of["name"]) for of in each["subjects"]]
        for each in render_team(team, TeamSettings())
        if each["kind"] == "RoleBinding"
    }
    own = ("Group", "fairlead:research:user")
    assert bound["fairlead-user"] == [own, ("Group", "oidc:ml"), ("User", "ann"), ("User", account)]
    assert bound["fairlead-admin"] == [("Group", "fairlead:research:admin")]


def test_every_object_of_a_team_is_in_its_namespace_and_bears_its_name() -> None:
    for each in render_team(TEAM, TeamSettings()):
        assert each["metadata"]["labels"]["fairlead.dev/team"] == "research"
        assert each["kind"] == "Namespace" or each["metadata"]["namespace"] == "research"


def test_only_pods_of_the_same_run_reach_each_other() -> None:
    policy = render_run_policy(a_workload())["spec"]
    same = [{"podSelector": {"matchLabels": {"fairlead.dev/run-uid": UID}}}]
    assert policy["podSelector"] == same[0]["podSelector"]
    assert policy["ingress"] == [{"from": same}]
    assert policy["egress"] == [{"to": same}]


def test_the_metadata_service_of_clouds_stays_closed() -> None:
    (_, runs) = render_team_policies("research", NetworkSettings())
    (storage,) = runs["spec"]["egress"][1]["to"]
    assert storage["ipBlock"] == {"cidr": "0.0.0.0/0", "except": [METADATA]}


def test_what_is_withheld_is_named_only_where_it_lies_inside() -> None:
    settings = NetworkSettings(storage_cidrs=("10.0.0.0/8", "2001:db8::/32"))
    (_, runs) = render_team_policies("research", settings)
    assert [each["ipBlock"] for each in runs["spec"]["egress"][1]["to"]] == [
        {"cidr": "10.0.0.0/8"},
        {"cidr": "2001:db8::/32"},
    ]
