"""Admission policies in CEL, by which an API server refuses what a role alone cannot withhold. Pure.

The operator creates the pods of all runs, so it cannot know what the author of a spec may do. The API server can: it
asks its own authorizer about the person whose request it is.

See decisions 163, 164 and 258.
"""

from collections.abc import Iterator
from json import dumps
from typing import Any

from fairlead.cluster.kubernetes.kinds import plural, workload_kinds
from fairlead.cluster.kubernetes.manifests.crds import GROUP
from fairlead.cluster.kubernetes.manifests.roles import (
    ENGINE_RULES,
    OPERATOR,
    OPERATOR_RULES,
    OVERLAY,
    ROLES,
    TEAM_RULES,
)
from fairlead.cluster.kubernetes.names import DOMAIN, GATEWAY_NAMESPACE, MANAGED_BY, MANAGER, POD_GROUP_PREFIX, TEAM
from fairlead.specs.data import CREDENTIALS, DataSource
from fairlead.specs.field_types import OverlayField, Section, SectionMap
from fairlead.specs.keys import OBJECTS
from fairlead.specs.overlay import MORE_THAN_A_POD, SIDE_MOST
from fairlead.specs.overlay_allowance import ASK, CAPABILITIES, CAPABILITY, PRIORITY_CLASSES, ROOT, OverlayAllowance
from fairlead.specs.secret_reference import SECRETS

OVERLAYS = "fairlead-overlays"
Object = dict[str, Any]
# An API server allows 28 questions to its authorizer for a policy, and two in one expression.
NAMED_SECRETS, NAMED_CONFIG_MAPS, NAMED_ACCOUNTS = 8, 8, 4


def render_overlay_policy(namespace: str, allowed: OverlayAllowance) -> list[Object]:
    """Render the policy for the key ``kubernetes`` of all kinds, and its binding.

    A field that gives something is for those who could take it themselves: who may create pods there may, who has the
    verb ``overlay`` on trainings may, and a single Secret, ConfigMap or account needs the right on that object. Fields
    that an installation decides about are for nobody else.

    Args:
        namespace: Namespace of the operator, which creates children from specs that were checked before.
    """
    validations = [*_of_amounts(), *_of_installation(allowed), *_of_requester()]
    match = [
        {"name": "not-the-operator", "expression": f"request.userInfo.username != {dumps(_account(namespace))}"},
        # Whoever changes only metadata or status, such as a controller, need not have the rights of the author.
        {"name": "spec-changes", "expression": "oldObject == null || object.spec != oldObject.spec"},
    ]
    return _policy(
        OVERLAYS,
        rules=[_rule((GROUP,), tuple(plural(kind) for kind in workload_kinds()), ("CREATE", "UPDATE"))],
        match=match,
        variables=[*_variables()],
        validations=validations,
    )


ORPHANS = "fairlead-orphans"
ORPHAN = "orphan"
"""Finalizer by which the garbage collector leaves what an object owns, as for `kubectl delete --cascade=orphan`."""


def render_orphan_policy() -> list[Object]:
    """Render the policy by which no workload leaves its pods or children behind, and its binding.

    They would hold nodes that no queue counts and nobody pays, and which only an administrator could free.
    """
    options = "request.?options"
    is_kept = f"{options}.propagationPolicy.orValue('') == 'Orphan' || {options}.orphanDependents.orValue(false)"
    has, had = (
        f"({variable} != null && {variable}.metadata.?finalizers.orValue([]).exists(f, f == '{ORPHAN}'))"
        for variable in ("object", "oldObject")
    )
    why = dumps("the pods and children of a workload do not outlive it: delete it without `--cascade=orphan`")
    return _policy(
        ORPHANS,
        rules=[_rule((GROUP,), tuple(plural(kind) for kind in workload_kinds()), ("CREATE", "UPDATE", "DELETE"))],
        match=[],
        variables=[],
        validations=[
            _validation(f"request.operation != 'DELETE' || !({is_kept})", why, key=""),
            _validation(f"request.operation == 'DELETE' || !{has} || {had}", why, key=""),
        ],
    )


GROUPS = "fairlead-pod-groups"
CONTROLLERS = "system:serviceaccount:kube-system:"
GROUPS_VERB = "fairlead-own"
"""Verb on PodGroups by which another account than the operator's may write those of gangs; cluster-admin has it."""


def render_group_policy(namespace: str) -> list[Object]:
    """Render the policy by which the PodGroups of gangs are the operator's alone, and its binding.

    Whoever may create pods in a namespace may otherwise take the name of a gang's group first, delete the group, or
    have a pod of another priority name it, with which kube-scheduler places no pod of the gang. Its own controllers
    collect what has no owner, and delete namespaces.

    Args:
        namespace: Namespace of the operator.
    """
    user = "request.userInfo.username"
    is_theirs = f"{user}.startsWith('{CONTROLLERS}') || {user} == 'system:kube-controller-manager'"
    may = _may("scheduling.k8s.io", "podgroups", GROUPS_VERB)
    own, prefix = dumps(_account(namespace)), dumps(POD_GROUP_PREFIX)
    name = "o.metadata.?name.orValue(o.metadata.?generateName.orValue(''))"
    taken = (
        "request.resource.resource == 'pods' ? "
        f"object.spec.?schedulingGroup.?podGroupName.orValue('').startsWith({prefix}) : "
        f"[object, oldObject].filter(o, o != null).exists(o, {name}.startsWith({prefix}))"
    )
    why = (
        f"PodGroups whose names begin with {POD_GROUP_PREFIX} are those of gangs, which the operator of Fairlead keeps"
    )
    return _policy(
        GROUPS,
        rules=[
            _rule(("",), ("pods",), ("CREATE",)),
            _rule(("scheduling.k8s.io",), ("podgroups",), ("CREATE", "UPDATE", "DELETE")),
        ],
        match=[
            {"name": "a-gang", "expression": taken},
            {"name": "not-the-operator", "expression": f"{user} != {own}"},
        ],
        variables=[],
        validations=[_validation(f"{is_theirs} || {may}", dumps(why), key="")],
    )


OPERATED = "fairlead-operator"
RUNS = f"{DOMAIN}/runs"
"""Label of a namespace: ``disabled`` keeps the operator out, ``enabled`` lets it in where only Teams' are open."""
DISABLED, ENABLED = "disabled", "enabled"
# Groups of which every object that the operator writes has its label; an engine's objects have those of the engine.
_LABELLED = ("", "networking.k8s.io", "discovery.k8s.io", "rbac.authorization.k8s.io", "scheduling.k8s.io")
# Kinds that others may have made under the same name, which the operator leaves alone.
_KEPT = ("pods", "services", "configmaps", "podtemplates", "endpointslices", "podgroups")
_WRITES = {"create": "CREATE", "update": "UPDATE", "patch": "UPDATE", "delete": "DELETE"}


def render_operator_policy(namespace: str, *, only_teams: bool) -> list[Object]:
    """Render the policy that holds the operator's account to its namespaces and its objects, and its binding.

    Its roles are of the whole cluster, since a role cannot name namespaces by a label. It bounds writes only: the
    account reads no Secrets, and what it reads elsewhere it needs for the queue.

    Args:
        only_teams: It writes in namespaces of Teams and those labelled ``fairlead.dev/runs=enabled`` only.
    """
    label = dumps(MANAGED_BY)
    is_ours, was_ours = (
        f"{variable}.metadata.?labels[?{label}].orValue('') == '{MANAGER}'"
        for variable in ("variables.object", "oldObject")
    )
    resource, group = "request.resource.resource", "request.resource.group"
    spaces = dumps([namespace, GATEWAY_NAMESPACE])
    is_own = f"request.namespace in {spaces} || variables.labels[?{dumps(TEAM)}].orValue('') == request.namespace"
    is_open = f"{is_own} || variables.labels[?{dumps(RUNS)}].orValue('') == '{ENABLED}'"
    is_closed = f"variables.labels[?{dumps(RUNS)}].orValue('') == '{DISABLED}'"
    allowed = is_open if only_teams else f"!({is_closed})"
    is_event = f"{group} in ['', 'events.k8s.io'] && {resource} == 'events'"
    host = " || ".join(f"object.spec.?{field}.orValue(false)" for field in ("hostNetwork", "hostPID", "hostIPC"))
    paths = "object.spec.?volumes.orValue([]).exists(v, has(v.hostPath))"
    privileged = (
        "(object.spec.containers + object.spec.?initContainers.orValue([]))"
        ".exists(c, c.?securityContext.privileged.orValue(false))"
    )
    of_team = f"o.metadata.?labels[?{dumps(TEAM)}].orValue('')"
    roles = dumps([f"fairlead-{role}" for role in ROLES])
    return _policy(
        OPERATED,
        rules=[*_written()],
        match=[{"name": "the-operator", "expression": f"request.userInfo.username == {dumps(_account(namespace))}"}],
        variables=[
            _variable("object", "object == null ? oldObject : object"),
            _variable("all", "[object, oldObject].filter(o, o != null)"),
            _variable("labels", "namespaceObject == null ? {} : namespaceObject.metadata.?labels.orValue({})"),
        ],
        validations=[
            _refusal("!request.namespace.startsWith('kube-')", "namespaces of Kubernetes itself are closed to it"),
            _refusal(
                f"{resource} == 'namespaces' || {is_event} || {allowed}",
                f"only namespaces of Teams and those labelled {RUNS}={ENABLED} are open to it"
                if only_teams
                else f"this namespace is closed to it by the label {RUNS}={DISABLED}",
            ),
            _refusal(
                f"!({group} in {dumps(list(_LABELLED))}) || {is_event} || {is_ours}",
                f"it writes only objects labelled {MANAGED_BY}={MANAGER}",
            ),
            _refusal(
                f"oldObject == null || !({resource} in {dumps(list(_KEPT))}) || {was_ours}",
                f"it changes and deletes only objects labelled {MANAGED_BY}={MANAGER}",
            ),
            _refusal(
                f"{resource} != 'namespaces' || variables.all.all(o, {of_team} == request.name)",
                "it makes and changes only the namespaces of Teams",
            ),
            _refusal(
                f"{resource} != 'rolebindings' || variables.labels[?{dumps(TEAM)}].orValue('') == request.namespace && "
                f"object.roleRef.kind == 'ClusterRole' && object.roleRef.name in {roles}",
                "it binds only the roles of people, in namespaces of Teams",
            ),
            _refusal(
                f"{resource} != 'pods' || request.operation == 'DELETE' || !({host} || {paths} || {privileged})",
                "its pods have nothing of the host",
            ),
        ],
    )


def _written() -> Iterator[Object]:
    """Yield the rules for all that the operator's roles let it write."""
    for rule in (*OPERATOR_RULES, *TEAM_RULES, *ENGINE_RULES):
        operations = sorted({_WRITES[verb] for verb in rule["verbs"] if verb in _WRITES})
        # Kinds of Fairlead that are of the whole cluster have no namespace.
        resources = [name for name in rule["resources"] if name.partition("/")[0] not in ("teams", "pools")]
        is_asked = rule["apiGroups"][0] in ("authentication.k8s.io", "authorization.k8s.io")  # nothing is kept
        if operations and resources and not is_asked:
            yield _rule(tuple(rule["apiGroups"]), tuple(resources), tuple(operations))


def _refusal(expression: str, why: str) -> Object:
    return {"expression": expression, "message": f"the operator of Fairlead: {why}"}


def _account(namespace: str) -> str:
    return f"system:serviceaccount:{namespace}:{OPERATOR}"


def overlay_expression() -> str:
    """Return the CEL expression for the list of all overlays of an object of any kind."""
    overlays: dict[str, None] = {}
    for kind in workload_kinds():
        overlays |= dict.fromkeys(_overlays(OBJECTS[kind], "object.spec", 0))
    return " + ".join(overlays)


def _overlays(section: Section, at: str, depth: int) -> Iterator[str]:
    for key in section.keys:
        place = f"{at}.{key.name}"
        if isinstance(key.kind, OverlayField):
            yield f"(has({place}) ? [{place}] : [])"
        elif isinstance(key.kind, Section):
            for inner in _overlays(key.kind, place, depth):
                yield f"(has({place}) ? {inner} : [])"
        elif isinstance(key.kind, SectionMap):
            item = f"s{depth}"
            for inner in _overlays(key.kind.item, item, depth + 1):
                # An inner list has one overlay or none.
                yield (
                    f"(has({place}) ? {place}.map(k, {place}[k]).map({item}, {inner}).filter(l, l.size() > 0)"
                    ".map(l, l[0]) : [])"
                )


def secret_expression() -> str:
    """Return the CEL expression for the names of Secrets that keys of a spec name, of any kind, joined by commas."""
    names: dict[str, None] = {}
    for kind in workload_kinds():
        names |= dict.fromkeys(_secret_names(OBJECTS[kind], "object.spec", 0))
    return f'[{", ".join(names)}].filter(n, n != "").join(",")'


def _secret_names(section: Section, at: str, depth: int) -> Iterator[str]:
    """Yield expressions for texts of names joined by commas, empty without any."""
    for key in section.keys:
        place = f"{at}.{key.name}"
        if key.kind == SECRETS:  # NAME, VARIABLE=NAME or VARIABLE=NAME/ENTRY
            name = 'r.substring(r.indexOf("=") + 1).split("/")[0]'
            yield f'(has({place}) ? {place}.map(r, {name}).join(",") : "")'
        elif section.type is DataSource and key.name == CREDENTIALS:
            yield f'(has({place}) ? {place} : "")'
        elif isinstance(key.kind, Section):
            for inner in _secret_names(key.kind, place, depth):
                yield f'(has({place}) ? {inner} : "")'
        elif isinstance(key.kind, SectionMap):
            item = f"s{depth}"
            for inner in _secret_names(key.kind.item, item, depth + 1):
                yield (
                    f"(has({place}) ? {place}.map(k, {place}[k]).map({item}, {inner})"
                    '.filter(n, n != "").join(",") : "")'
                )


_CONTAINERS = "((has(p.containers) ? p.containers : []) + (has(p.initContainers) ? p.initContainers : []))"


def _named(*lists: str) -> str:
    """Return an expression for the names in lists of texts, which are joined by commas, of all pods."""
    joined = " + ".join(f"variables.pods.map(p, {pods})" for pods in lists)
    # No function flattens a list of lists, and no name of an object has a comma.
    return f'({joined}).map(l, l.filter(n, n != "")).filter(l, l.size() > 0).map(l, l.join(",")).join(",")'


def _in_volumes(kind: str, name: str) -> str:
    test = f"has(v.{kind}) && has(v.{kind}.{name})"
    return f"(has(p.volumes) ? p.volumes.filter(v, {test}).map(v, v.{kind}.{name}) : [])"


def _in_env(kind: str) -> str:
    of_env = f"has(e.valueFrom) && has(e.valueFrom.{kind}KeyRef)"
    return (
        f'{_CONTAINERS}.map(c, has(c.env) ? c.env.filter(e, {of_env}).map(e, e.valueFrom.{kind}KeyRef.name).join(",")'
        ' : "")'
    )


def _in_env_from(kind: str) -> str:
    return (
        f"{_CONTAINERS}.map(c, has(c.envFrom) ? c.envFrom.filter(e, has(e.{kind}Ref)).map(e, e.{kind}Ref.name)"
        '.join(",") : "")'
    )


def _variables() -> Iterator[Object]:
    """Yield the variables; each is evaluated when it is first used, with a cost limit of its own."""
    yield _variable("overlays", overlay_expression())
    yield _variable("of_keys", secret_expression())
    yield _variable("pods", "variables.overlays.filter(o, has(o.spec)).map(o, o.spec)")
    yield _variable("may_create_pods", _may("", "pods", "create"))
    yield _variable("may_overlay", _may(GROUP, plural("Training"), OVERLAY))
    yield _variable("may_all", "variables.may_create_pods || variables.may_overlay")
    secrets = (
        _in_volumes("secret", "secretName"),
        "(has(p.volumes) ? p.volumes.filter(v, has(v.csi) && has(v.csi.nodePublishSecretRef))"
        ".map(v, v.csi.nodePublishSecretRef.name) : [])",
        _in_env("secret"),
        _in_env_from("secret"),
    )
    config_maps = (_in_volumes("configMap", "name"), _in_env("configMap"), _in_env_from("configMap"))
    account = (
        '[has(p.serviceAccountName) && p.serviceAccountName != "" ? p.serviceAccountName : '
        'has(p.automountServiceAccountToken) && p.automountServiceAccountToken ? "default" : ""]'
    )
    for what, most, texts in (
        ("secrets", NAMED_SECRETS, secrets),
        ("config_maps", NAMED_CONFIG_MAPS, config_maps),
        ("accounts", NAMED_ACCOUNTS, (account,)),
    ):
        text = _named(*texts)
        if what == "secrets":
            text = f'[variables.of_keys, {text}].filter(n, n != "").join(",")'
        yield _variable(f"{what}_text", text)
        yield _variable(
            f"{what}0", f'variables.{what}_text == "" ? [] : variables.{what}_text.split(",")'
        )  # fmt: skip
        for number in range(most):
            before = f"variables.{what}{number}"
            yield _variable(f"{what}{number + 1}", f"{before}.filter(n, n != {before}[0])")


def _of_requester() -> Iterator[Object]:
    for what, kind, most, resource, verb in (
        ("secrets", "Secret", NAMED_SECRETS, "secrets", "get"),
        ("config_maps", "ConfigMap", NAMED_CONFIG_MAPS, "configmaps", "get"),
        ("accounts", "ServiceAccount", NAMED_ACCOUNTS, "serviceaccounts", "impersonate"),
    ):
        for number in range(most):
            name = f"variables.{what}{number}[0]"
            test = f"variables.{what}{number}.size() == 0 || variables.may_all || {_may('', resource, verb, name)}"
            yield _validation(
                test,
                f'"the pod would use {kind} \\"" + {name} + "\\", for which you need `{verb}` on {resource} "',
                *_REMEDY,
                key="" if kind == "Secret" else "kubernetes: ",  # which other keys name too
            )
        yield _validation(
            f"variables.{what}{most}.size() == 0 || variables.may_all",
            f'"the pods would use more than {most} different {kind}s, which only "',
            '"who may create pods "',
            *_REMEDY[1:],
        )
    nfs = _volumes("nfs")
    yield _validation(f"!{nfs} || variables.may_all", '"volumes of nfs need `create` on pods "', *_REMEDY)
    yield _validation(f"!{_volumes('csi')} || variables.may_all", '"volumes of csi need `create` on pods "', *_REMEDY)
    claims = "variables.pods.exists(p, has(p.resourceClaims) && p.resourceClaims.size() > 0)"
    yield _validation(f"!{claims} || variables.may_all", '"resourceClaims need `create` on pods "', *_REMEDY)
    yield _validation(
        f"!{_other_namespaces()} || variables.may_all",
        '"namespaces in an affinity between pods need `create` on pods "',
        *_REMEDY,
    )


_REMEDY = (
    '"in namespace " + request.namespace + ", or "',
    f'"`{OVERLAY}` on {plural("Training")}.{GROUP}, which the role fairlead-admin has; "',
    '"leave it out, or ask an administrator"',
)


def _volumes(kind: str) -> str:
    return f"variables.pods.exists(p, has(p.volumes) && p.volumes.exists(v, has(v.{kind})))"


def _other_namespaces() -> str:
    required, preferred = (
        f"{strength}DuringSchedulingIgnoredDuringExecution" for strength in ("required", "preferred")
    )
    tests = []
    for kind in ("podAffinity", "podAntiAffinity"):
        at = f"p.affinity.{kind}"
        for list_, term in ((required, "t"), (preferred, "t.podAffinityTerm")):
            test = f"has({term}.namespaces) && {term}.namespaces.size() > 0"
            tests.append(f"has({at}) && has({at}.{list_}) && {at}.{list_}.exists(t, {test})")
    return f"variables.pods.exists(p, has(p.affinity) && ({' || '.join(f'({test})' for test in tests)}))"


def _of_amounts() -> Iterator[Object]:
    """Yield the bounds of cores and memory of containers beside the ranks, for which a schema has no words."""
    for name, (most, give) in SIDE_MOST.items():
        limit = f"{most}m" if name == "cpu" else str(most)
        amount = f"string(r.{name})"
        parts = (f"(has(c.resources.{part}) ? [c.resources.{part}] : [])" for part in ("requests", "limits"))
        # What is no quantity is refused by the operator, with what it is.
        is_more = f"isQuantity({amount}) && quantity({amount}).isGreaterThan(quantity({dumps(limit)}))"
        is_any = f"has(c.resources) && ({' + '.join(parts)}).exists(r, has(r.{name}) && {is_more})"
        yield _validation(
            f"!variables.pods.exists(p, has(p.initContainers) && p.initContainers.exists(c, {is_any}))",
            dumps(f"resources.{name} of a container{MORE_THAN_A_POD}; {give}"),
        )


def _of_installation(allowed: OverlayAllowance) -> Iterator[Object]:
    classes = dumps(list(allowed.priority_classes))
    test = f'has(p.priorityClassName) && p.priorityClassName != "" && !(p.priorityClassName in {classes})'
    ask = ASK.format(f"{PRIORITY_CLASSES}NAME")
    yield _validation(
        f"!variables.pods.exists(p, {test})",
        dumps(f"this priority class is not allowed, as it would evict other teams' pods; {ask}"),
    )
    of_pod = "has(p.securityContext) && [p.securityContext].exists(x, {test})"
    of_containers = f"{_CONTAINERS}.exists(c, has(c.securityContext) && [c.securityContext].exists(x, {{test}}))"
    if not allowed.root:
        root = "(has(x.runAsUser) && x.runAsUser == 0) || (has(x.runAsNonRoot) && !x.runAsNonRoot)"
        anywhere = f"({of_pod.format(test=root)}) || {of_containers.format(test=root)}"
        yield _validation(
            f"!variables.pods.exists(p, {anywhere})", dumps(f"root is not allowed here; {ASK.format(ROOT)}")
        )
    names = dumps([CAPABILITY, *allowed.capabilities])
    added = f"has(x.capabilities) && has(x.capabilities.add) && x.capabilities.add.exists(a, !(a in {names}))"
    yield _validation(
        f"!variables.pods.exists(p, {of_containers.format(test=added)})",
        dumps(f"this capability is not allowed here; {ASK.format(f'{CAPABILITIES}NAME')}"),
    )


def _may(group: str, resource: str, verb: str, name: str | None = None) -> str:
    """Return the question to the authorizer about the requester in the request's namespace."""
    which = "" if name is None else f".name({name})"
    return (
        f"authorizer.group({dumps(group)}).resource({dumps(resource)}).namespace(request.namespace){which}"
        f".check({dumps(verb)}).allowed()"
    )


def _variable(name: str, expression: str) -> Object:
    return {"name": name, "expression": expression}


def _validation(expression: str, *message: str, key: str = "kubernetes: ") -> Object:
    return {"expression": expression, "messageExpression": " + ".join((dumps(key), *message))}


def _rule(groups: tuple[str, ...], resources: tuple[str, ...], operations: tuple[str, ...]) -> Object:
    return {
        "apiGroups": list(groups), "apiVersions": ["*"], "resources": list(resources), "operations": list(operations),
    }  # fmt: skip


def _policy(
    name: str, *, rules: list[Object], match: list[Object], variables: list[Object], validations: list[Object]
) -> list[Object]:
    """Render a policy that fails closed, and the binding that makes it deny."""
    metadata = {"name": name, "labels": {MANAGED_BY: MANAGER}}
    api = "admissionregistration.k8s.io/v1"
    return [
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": metadata,
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": rules},
                "matchConditions": match,
                "variables": variables,
                "validations": validations,
            },
        },
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata,
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]
