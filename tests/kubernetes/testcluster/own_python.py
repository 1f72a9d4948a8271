"""The Python that runs the tests, with its packages, on real nodes: nothing is copied, so PyTorch costs nothing.

The nodes' runtime puts two directories of this machine into every container (``DIRECTORIES``, which are given to
``RealCluster``), and the image ``NAME`` does no more than name them, in its environment and by two links. So a pod
computes with the very packages, and reads the very standard library, that a program on this machine does.
"""

import os
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.kubernetes.testcluster import images
from tests.kubernetes.testcluster.errors import Unavailable

NAME = "testcluster.fairlead.dev/own-python:1"
_PYTHON, _PACKAGES = "/opt/own/python", "/opt/own/packages"
DIRECTORIES = {_PYTHON: Path(sys.base_prefix), _PACKAGES: Path(sysconfig.get_path("purelib"))}
_ENVIRONMENT = (
    *images.ENVIRONMENT,
    f"LD_LIBRARY_PATH={_PYTHON}/lib",
)
GLIBC = (2, 36)  # of images.RELEASE


def write_image(
    target: Path, name: str = NAME, *, files: Mapping[str, Path] | None = None, packages: Sequence[str] = ()
) -> Path:
    """The archive of ``NAME``, or of an image that has more, for ``RealCluster.import_image``.

    Args:
        files: Files of this machine that the image has too, by their paths there.
        packages: Directories in the container whose packages come before those of the tests.

    Raises:
        Unavailable: This machine's Python needs a newer C library than the image has, or is not below its prefix.
    """
    found = (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc ")
    if not found or tuple(int(part) for part in found.split(".")[:2]) > GLIBC:
        wanted = ".".join(str(part) for part in GLIBC)
        raise Unavailable(f"a container has glibc {wanted}, the Python of these tests may need {found or 'another'}")
    program = Path(os.path.realpath(sys._base_executable)).name  # type: ignore[attr-defined] # not in typeshed
    if not (Path(sys.base_prefix) / "bin" / program).exists():
        raise Unavailable(f"{sys.base_prefix}/bin has no {program}, the Python of these tests")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        link = Path(scratch) / program
        link.symlink_to(f"{_PYTHON}/bin/{program}")
        links = {f"/usr/local/bin/{each}": link for each in ("python", "python3")}
        layer = images.layer_of(Path(scratch) / "layer.tar", {**links, **(files or {})})
        environment = (*_ENVIRONMENT, f"PYTHONPATH={':'.join((*packages, _PACKAGES))}")
        images.extend(target, name, [layer], env=environment)
    return target
