"""Judges the environment of a run that is not submitted yet, for which its packages are resolved. See decision 228."""

from collections.abc import Mapping

from fairlead.cluster.local.home import Home
from fairlead.cluster.local.packages.build import BuildFailed, lock_of
from fairlead.cluster.local.packages.gpu_support import judge_lock
from fairlead.cluster.local.packages.requests import read_request
from fairlead.policy.gpu.cuda_support import GpuSupport, Support
from fairlead.specs.training import Training


def foresee(spec: Training, home: Home, environ: Mapping[str, str]) -> GpuSupport | None:
    """Return how the environment of a run that is not submitted yet stands to this machine; None without GPUs or one.

    Its packages are resolved if they are not yet, into the lock that the run will have.

    Args:
        spec: A run whose working directory is absolute.

    Raises:
        InvalidSpec: A file is missing or asks for what is not done here.
        Conflict: There is no uv, or not that Python.
    """
    gpu = spec.resources.gpu
    if spec.environment is None or gpu is None or gpu.milli == 0:
        return None
    try:
        request = read_request(spec, home, environ)
        return judge_lock(lock_of(home, request), request["python"][1], environ)
    except BuildFailed as error:
        problem = error.failure.message
    except OSError as error:
        problem = f"{error.filename}: {error.strerror or error}"
    return GpuSupport(support=Support.UNKNOWN, message=f"its packages cannot be resolved: {problem}")
