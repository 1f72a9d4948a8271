"""Finds Secrets of a run that are missing or cannot be used, at its submission, as far as its user may read them.

Whether a user may use a Secret is decided by the API server (``manifests/admission_policies.py``); this only reports
early what would keep pods from starting. Values are read into memory, compared with nothing, and dropped.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.names import segment
from fairlead.runtime.secret_entries import VARIABLE
from fairlead.specs.gang import ProgramSpec
from fairlead.specs.secret_reference import as_files, as_variables


def secret_problem(client: Client, namespace: str, spec: ProgramSpec) -> str | None:
    """Return why a run's pods cannot get their Secrets, as a clause with the key; None where nothing is known."""
    files = as_files(spec.secrets)
    of_data = {source.credentials: name for name, source in spec.data.items() if source.credentials is not None}
    entries: dict[str, frozenset[str]] = {}
    for name in dict.fromkeys((*as_variables(spec.secrets), *(item.name for item in files), *of_data)):
        key = "secrets" if name not in of_data else f"data.{of_data[name]}.credentials"
        try:
            content: Mapping[str, Any] = client.get(f"/api/v1/namespaces/{segment(namespace)}/secrets/{segment(name)}")
        except ApiError as error:
            if error.status == 403:  # the API server decides whether the user may use it nevertheless
                continue
            if error.status != 404:
                raise
            return (
                f"{key}: there is no Secret `{name}` in namespace {namespace}; `kubectl -n {namespace} create secret "
                f"generic {name} --from-file=KEY=PATH` makes it"
            )
        entries[name] = frozenset(content.get("data") or ())
        if not entries[name]:
            return f"{key}: the Secret `{name}` in namespace {namespace} has no entries"
    return _clash(spec, entries) or next(
        (
            f"secrets: the Secret `{item.name}` has no entry `{item.entry}`; it has {_listed(entries[item.name])}"
            for item in files
            if item.name in entries and item.entry is not None and item.entry not in entries[item.name]
        ),
        None,
    )


def pull_problem(client: Client, namespace: str, names: Iterable[str]) -> str | None:
    """Return why nodes cannot pull images with their Secrets, as a clause with the key; None where nothing is known."""
    for name in names:
        try:
            client.get(f"/api/v1/namespaces/{segment(namespace)}/secrets/{segment(name)}")
        except ApiError as error:
            if error.status == 403:  # kubelet reads them, whoever submits
                continue
            if error.status != 404:
                raise
            return (
                f"kubernetes.spec.imagePullSecrets: there is no Secret `{name}` in namespace {namespace}; `kubectl -n "
                f"{namespace} create secret docker-registry {name} --docker-server=REGISTRY --docker-username=USER "
                "--docker-password=PASSWORD` makes it"
            )
    return None


def _clash(spec: ProgramSpec, entries: Mapping[str, frozenset[str]]) -> str | None:
    """Return which entry cannot be a variable beside the others; None if all can."""
    owners = dict.fromkeys(spec.env, "`env`") | {
        item.variable: "`secrets` as a file" for item in as_files(spec.secrets) if item.variable is not None
    }
    for name in as_variables(spec.secrets):
        for entry in sorted(entries.get(name, ())):
            if VARIABLE.fullmatch(entry) is None:
                return (
                    f"secrets: the entry `{entry}` of the Secret `{name}` is no name of a variable; take it as a file: "
                    f"`VARIABLE={name}/{entry}`"
                )
            if entry in owners:
                return f"secrets: {entry} is an entry of the Secret `{name}` and in {owners[entry]}; remove one of them"
            owners[entry] = f"the Secret `{name}`"
    return None


def _listed(entries: frozenset[str]) -> str:
    return ", ".join(sorted(entries))
