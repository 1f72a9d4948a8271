"""Finds the access to a cluster: a context of the user's kubeconfig, or the service account of a pod.

Reads the files as kubectl does: ``KUBECONFIG`` may name several files, the first file that defines a name takes
precedence, and paths in a file are relative to it.
"""

import base64
import binascii
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.cluster.kubernetes.api.credentials import Anonymous, Basic, Credentials, ExecPlugin, FixedToken, TokenFile
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass

IN_CLUSTER = "in-cluster"
"""The name in place of a context's for a pod's service account."""
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """Everything that a client needs to reach an API server.

    Attributes:
        context: Name of the context, for messages.
        server: Base URL, without a trailing slash.
        namespace: Namespace of objects that name none.
        ca: PEM of the trusted authorities; None for those of the system.
        verify: False only if the file sets ``insecure-skip-tls-verify``.
        tls_server_name: Name in the server's certificate, if it differs from the URL's.
        certificate: PEM of the client's certificate and of its key.
        proxy: URL of a proxy; None to use the proxy variables of the environment.
        impersonate: Headers with which the user impersonates another.
    """

    context: str
    server: str
    credentials: Credentials
    namespace: str = "default"
    ca: bytes | None = None
    verify: bool = True
    tls_server_name: str | None = None
    certificate: tuple[bytes, bytes] | None = None
    proxy: str | None = None
    impersonate: tuple[tuple[str, str], ...] = ()

    @property
    def option(self) -> str:
        """The option by which a command uses this context, after a space; empty in a pod, which has no contexts."""
        return "" if self.context == IN_CLUSTER else f" --context {shlex.quote(self.context)}"


def find_access(
    *, context: str | None = None, environ: Mapping[str, str] = os.environ, service_account: Path = SERVICE_ACCOUNT
) -> ClusterAccess:
    """Return the given context, the current one, or the cluster that this process runs in.

    Raises:
        ClusterError: There is none, or it cannot be used.
    """
    files = _files(environ)
    if context is None and not files and "KUBERNETES_SERVICE_HOST" in environ:
        return in_cluster(environ, service_account)
    if not files:
        raise ClusterError(
            "No cluster is configured: there is no kubeconfig. Set KUBECONFIG, or make ~/.kube/config with your "
            "provider's command, such as `gcloud container clusters get-credentials` or `aws eks update-kubeconfig`."
        )
    return load_access(files, context)


def contexts(environ: Mapping[str, str] = os.environ) -> tuple[tuple[str, ...], str | None]:
    """Return the names of all contexts, and the current one."""
    config = _merged(_files(environ))
    return tuple(config["contexts"]), config["current-context"]


def in_cluster(environ: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT) -> ClusterAccess:
    """Return the cluster that this pod runs in, with the token of its service account."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    try:
        ca = (service_account / "ca.crt").read_bytes()
        namespace = (service_account / "namespace").read_text().strip()
    except OSError as error:
        raise ClusterError(
            f"This pod has no service account token ({error}). "
            "Set `automountServiceAccountToken: true`, or give a kubeconfig in KUBECONFIG."
        ) from error
    return ClusterAccess(
        context=IN_CLUSTER,
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        credentials=TokenFile(service_account / "token"),
        namespace=namespace,
        ca=ca,
    )


def load_access(files: tuple[Path, ...], context: str | None = None) -> ClusterAccess:
    """Return a context of kubeconfig files.

    Raises:
        ClusterError: The files do not have it, or it is incomplete.
    """
    config = _merged(files)
    name = context or config["current-context"]
    known = ", ".join(sorted(config["contexts"])) or "none"
    if not name:
        raise ClusterError(f"No context is current. Choose one with `--context`; there are: {known}.")
    if name not in config["contexts"]:
        raise ClusterError(f"There is no context {name!r} in {_say(files)}; there are: {known}.")
    chosen, base = config["contexts"][name]
    cluster, cluster_base = _part(config, "clusters", "cluster", chosen, name, base)
    user: dict[str, Any] = {}
    user_base = base
    if chosen.get("user"):
        user, user_base = _part(config, "users", "user", chosen, name, base)
    server = str(cluster.get("server") or "")
    if not server.startswith(("https://", "http://")):
        raise ClusterError(f"Context {name!r}: its cluster's `server` is {server!r}; it must be an https URL.")
    return ClusterAccess(
        context=name,
        server=server.rstrip("/"),
        credentials=_credentials(user, user_base, name, cluster),
        namespace=str(chosen.get("namespace") or "default"),
        ca=_data(cluster, "certificate-authority", cluster_base, name),
        verify=not cluster.get("insecure-skip-tls-verify", False),
        tls_server_name=cluster.get("tls-server-name"),
        certificate=_certificate(user, user_base, name),
        proxy=cluster.get("proxy-url") or None,
        impersonate=_impersonation(user),
    )


def _files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    paths = environ.get("KUBECONFIG")
    if paths:
        return tuple(path for part in paths.split(os.pathsep) if part and (path := Path(part)).exists())
    default = Path(environ.get("HOME", "~")).expanduser() / ".kube" / "config"
    return (default,) if default.exists() else ()


def _merged(files: tuple[Path, ...]) -> dict[str, Any]:
    """Return (value, directory of the file) by name; the first file that defines a name takes precedence."""
    import yaml

    merged: dict[str, Any] = {"clusters": {}, "users": {}, "contexts": {}, "current-context": None}
    for file in files:
        try:
            content = yaml.load(file.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
            for part, inner in (("clusters", "cluster"), ("users", "user"), ("contexts", "context")):
                for entry in content.get(part) or ():
                    merged[part].setdefault(str(entry["name"]), (entry.get(inner) or {}, file.parent))
        except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
            raise ClusterError(f"{file} is not a kubeconfig that can be read: {error}") from error
        merged["current-context"] = merged["current-context"] or content.get("current-context")
    return merged


def _part(
    config: dict[str, Any], part: str, word: str, chosen: dict[str, Any], context: str, base: Path
) -> tuple[dict[str, Any], Path]:
    wanted = chosen.get(word)
    section: tuple[dict[str, Any], Path] | None = config[part].get(str(wanted))
    if section is None:
        raise ClusterError(f"Context {context!r} names the {word} {wanted!r}, which no file in {base} defines.")
    return section


def _data(owner: dict[str, Any], key: str, base: Path, context: str) -> bytes | None:
    """Return the value of ``KEY-data``, or otherwise the content of the file named by ``KEY``."""
    inline = owner.get(f"{key}-data")
    try:
        if inline:
            return base64.b64decode(inline, validate=True)
        return (base / Path(str(owner[key])).expanduser()).read_bytes() if owner.get(key) else None
    except (OSError, binascii.Error, TypeError) as error:
        raise ClusterError(f"Context {context!r}: its `{key}` cannot be read: {error}") from error


def _certificate(user: dict[str, Any], base: Path, context: str) -> tuple[bytes, bytes] | None:
    certificate = _data(user, "client-certificate", base, context)
    key = _data(user, "client-key", base, context)
    if (certificate is None) != (key is None):
        raise ClusterError(f"Context {context!r}: a client certificate and its key belong together; one is missing.")
    return None if certificate is None or key is None else (certificate, key)


def _credentials(user: dict[str, Any], base: Path, context: str, cluster: dict[str, Any]) -> Credentials:
    if user.get("token"):
        return FixedToken(str(user["token"]))
    if user.get("tokenFile"):
        return TokenFile(base / Path(str(user["tokenFile"])).expanduser())
    if user.get("exec"):
        return ExecPlugin(user["exec"], directory=base, context=context, cluster=cluster)
    if user.get("username"):
        return Basic(str(user["username"]), str(user.get("password") or ""))
    if user.get("auth-provider"):
        name = user["auth-provider"].get("name")
        raise ClusterError(
            f"Context {context!r} uses the auth-provider {name!r}, which Kubernetes removed in 1.26. "
            "Use its exec plugin, such as `gke-gcloud-auth-plugin`, `kubelogin` or `kubectl oidc-login`."
        )
    return Anonymous()


def _impersonation(user: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    headers = [("Impersonate-User", str(user["as"]))] if user.get("as") else []
    headers += [("Impersonate-Uid", str(user["as-uid"]))] if user.get("as-uid") else []
    headers += [("Impersonate-Group", str(group)) for group in user.get("as-groups") or ()]
    for name, values in (user.get("as-user-extra") or {}).items():
        headers += [(f"Impersonate-Extra-{name}", str(value)) for value in values]
    return tuple(headers)


def _say(files: tuple[Path, ...]) -> str:
    return ", ".join(str(file) for file in files)
