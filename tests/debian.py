"""Programs of Debian's packages for tests: the system's, or the package's, unpacked and not installed."""

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

PLACE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fairlead-tests"
FETCH_S = 120.0
# After a refusal nobody asks again for so long.
AGAIN_S = 600.0


def haproxy() -> Path:
    """haproxy, with the libraries of its package that few machines have; skips the test where it cannot be had."""
    found = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is not None:
        return Path(found)
    unpacked = program("haproxy", "haproxy", folder="sbin")
    libraries = [
        program(library, package, folder="lib/x86_64-linux-gnu").parent
        for library, package in (
            ("liblua5.3.so.0", "liblua5.3-0"),
            ("libopentracing-c-wrapper.so.0", "libopentracing-c-wrapper0"),
            ("libopentracing.so.1", "libopentracing1"),
        )
    ]
    wrapper = PLACE / "haproxy-with-libraries"
    if not wrapper.exists():
        draft = wrapper.with_name(f"{wrapper.name}.{os.getpid()}")
        path = ":".join(map(str, libraries))
        draft.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={path} exec {unpacked} "$@"\n')
        draft.chmod(0o755)
        draft.replace(wrapper)
    if subprocess.run([wrapper, "-v"], capture_output=True, timeout=60.0, check=False).returncode:
        pytest.skip("no haproxy here, and that of Debian's package does not start: apt-get install haproxy")
    return wrapper


def haproxy_directory() -> Path:
    """A directory with ``haproxy`` and its libraries, of which nothing depends on where it lies."""
    found = haproxy()
    place = PLACE / "haproxy-directory"
    if (place / "haproxy").exists():
        return place
    text = found.read_bytes()
    binary = found if text.startswith(b"\x7fELF") else PLACE / "haproxy" / "usr" / "sbin" / "haproxy"
    path = "" if binary is found else text.decode().partition("LD_LIBRARY_PATH=")[2].split()[0]
    told = subprocess.run(
        ["ldd", binary], capture_output=True, text=True, check=True, env={**os.environ, "LD_LIBRARY_PATH": path}
    )
    draft = place.with_name(f"{place.name}.{os.getpid()}")
    (draft / "lib").mkdir(parents=True)
    shutil.copy(binary, draft / "haproxy.bin")
    for line in told.stdout.splitlines():
        name, _, library = line.strip().partition(" => ")
        if library and not name.startswith(("libc.", "libm.")):  # as every image with Python has them
            shutil.copy(library.split()[0], draft / "lib" / name)
    script = 'here=$(dirname "$0")\nLD_LIBRARY_PATH=$here/lib exec "$here/haproxy.bin" "$@"\n'
    (draft / "haproxy").write_text(f"#!/bin/sh\n{script}")
    (draft / "haproxy").chmod(0o755)
    try:
        draft.rename(place)
    except OSError:  # another worker was first
        shutil.rmtree(draft)
    return place


def program(name: str, package: str, folder: str = "bin") -> Path:
    """A program of a package; skips the test with the reason where it cannot be had."""
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    place = PLACE / package
    unpacked = place / "usr" / folder / name
    if unpacked.exists():
        return unpacked
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip(f"no {name} here: install it, or run on Debian, whose package {package} is fetched")
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers of one test run
        if not unpacked.exists():
            _fetch(name, package, place)
    return unpacked


def _fetch(name: str, package: str, place: Path) -> None:
    """Download the package and unpack it; nothing of it is installed or started.

    Another worker sees it whole or not at all. One that got no answer leaves word, so that no other waits for it too.
    """
    refused = place / "refused"
    if refused.exists() and time.time() - refused.stat().st_mtime < AGAIN_S:
        pytest.skip(f"no {name} here, and its package could not be fetched a while ago: {refused.read_text()}")
    download = ["apt-get", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10", "download", package]
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        try:
            got = subprocess.run(download, cwd=scratch, capture_output=True, text=True, timeout=FETCH_S, check=False)
            why = got.stderr.strip() if got.returncode else None
        except subprocess.TimeoutExpired:
            why = f"not done within {FETCH_S:g} s"
        packages = sorted(Path(scratch).glob(f"{package}_*.deb"))
        if why is not None or not packages:
            why = why or "there is none"
            refused.write_text(why)
            pytest.skip(f"no {name} here, and its package {package} cannot be fetched: {why}")
        subprocess.run(["dpkg-deb", "-x", packages[-1], "unpacked"], cwd=scratch, check=True, timeout=FETCH_S)
        shutil.rmtree(place / "usr", ignore_errors=True)
        (Path(scratch) / "unpacked" / "usr").rename(place / "usr")
    refused.unlink(missing_ok=True)
