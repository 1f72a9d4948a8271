"""Judges whether the packages of an environment work with a GPU driver and its GPUs, by tables of their vendors. Pure.

The CUDA version follows from the packages that a lock names: the local version of torch (``+cu126``), the plugin of
JAX, or NVIDIA's runtime packages. Each table names its source; what no table lists is unknown, and never works by
guess. Drivers are those of Linux. Forward compatibility packages, which replace the driver's library, are not
considered: see decision 228.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from fairlead.frozen import dataclass

Version = tuple[int, ...]
TorchBuilds = dict[Version, tuple[Version, ...]]

# Least driver of a major release, which runs all its minor releases.
# Source: CUDA Toolkit 13.2 Update 2 Release Notes, Table 2 (13.x >= 580, 12.x >= 525, 11.x >= 450) with the first
# releases of these branches: Table 3 for 13.0 and 12.0, the note on 11.0 for 450.80.02.
LEAST_DRIVERS: dict[int, Version] = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}

# Driver of a toolkit, from which on it works in full and not by minor version compatibility.
# Source: CUDA Toolkit 13.2 Update 2 Release Notes, Table 3, first release of each.
TOOLKIT_DRIVERS: dict[Version, Version] = {
    (11, 0): (450, 51, 5),
    (11, 1): (455, 23),
    (11, 2): (460, 27, 3),
    (11, 3): (465, 19, 1),
    (11, 4): (470, 42, 1),
    (11, 5): (495, 29, 5),
    (11, 6): (510, 39, 1),
    (11, 7): (515, 43, 4),
    (11, 8): (520, 61, 5),
    (12, 0): (525, 60, 13),
    (12, 1): (530, 30, 2),
    (12, 2): (535, 54, 3),
    (12, 3): (545, 23, 6),
    (12, 4): (550, 54, 14),
    (12, 5): (555, 42, 2),
    (12, 6): (560, 28, 3),
    (12, 8): (570, 26),
    (12, 9): (575, 51, 3),
    (13, 0): (580, 65, 6),
    (13, 1): (590, 44, 1),
    (13, 2): (595, 45, 4),
}

# Least compute capability of a major release: 12 has no Kepler, 13 no Maxwell, Pascal and Volta.
# Source: NVIDIA Data Center Drivers, CUDA Toolkit, Driver, and Architecture Matrix; docs.jax.dev, Installation.
LEAST_CAPABILITIES: dict[int, Version] = {11: (3, 5), 12: (5, 0), 13: (7, 5)}

# First toolkit of a compute capability; others are unknown. Source: the same matrix.
FIRST_TOOLKITS: dict[Version, Version] = {
    (3, 5): (6, 0), (3, 7): (6, 0), (5, 0): (6, 5), (5, 2): (6, 5), (5, 3): (6, 5), (6, 0): (8, 0), (6, 1): (8, 0),
    (7, 0): (9, 0), (7, 5): (10, 0), (8, 0): (11, 0), (8, 6): (11, 0), (8, 9): (11, 8), (9, 0): (12, 0),
    (10, 0): (12, 8), (12, 0): (12, 8),
}  # fmt: skip

_MAXWELL_TO_HOPPER: tuple[Version, ...] = ((5, 0), (6, 0), (7, 0), (7, 5), (8, 0), (8, 6), (9, 0))
_KEPLER_TO_HOPPER: tuple[Version, ...] = ((3, 7), *_MAXWELL_TO_HOPPER)
_VOLTA_TO_BLACKWELL: tuple[Version, ...] = ((7, 0), (7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0))
_TURING_TO_BLACKWELL: tuple[Version, ...] = _VOLTA_TO_BLACKWELL[1:]

# Compute capabilities for which wheels of torch have machine code, by version of torch and CUDA, on Linux x86_64.
# Source: PyTorch RELEASE.md, PyTorch CUDA Support Matrix, of releases 2.9 to 2.14 (pull requests 164471, 175253,
# 182849, 197555 and RFC 190355); for 2.8 .ci/manywheel/build_cuda.sh of its branch; for 2.5 to 2.7 the code in the
# wheels, as cuobjdump lists it (github.com/moi90/pytorch_compute_capabilities).
TORCH_CAPABILITIES: dict[Version, TorchBuilds] = {
    (2, 5): {(11, 8): _KEPLER_TO_HOPPER, (12, 1): _MAXWELL_TO_HOPPER, (12, 4): _MAXWELL_TO_HOPPER},
    (2, 6): {(11, 8): _KEPLER_TO_HOPPER, (12, 4): _MAXWELL_TO_HOPPER, (12, 6): _MAXWELL_TO_HOPPER},
    (2, 7): {(11, 8): _KEPLER_TO_HOPPER, (12, 6): _MAXWELL_TO_HOPPER, (12, 8): _TURING_TO_BLACKWELL},
    (2, 8): {(12, 6): _MAXWELL_TO_HOPPER, (12, 8): _VOLTA_TO_BLACKWELL, (12, 9): _VOLTA_TO_BLACKWELL},
    (2, 9): {(12, 6): _MAXWELL_TO_HOPPER, (12, 8): _VOLTA_TO_BLACKWELL, (13, 0): _TURING_TO_BLACKWELL},
    (2, 10): {(12, 6): _MAXWELL_TO_HOPPER, (12, 8): _VOLTA_TO_BLACKWELL, (13, 0): _TURING_TO_BLACKWELL},
    (2, 11): {(12, 6): _MAXWELL_TO_HOPPER, (12, 8): _TURING_TO_BLACKWELL, (13, 0): _TURING_TO_BLACKWELL},
    (2, 12): {(12, 6): _MAXWELL_TO_HOPPER, (13, 0): _TURING_TO_BLACKWELL, (13, 2): _TURING_TO_BLACKWELL},
    (2, 13): {(12, 6): _MAXWELL_TO_HOPPER, (13, 0): _TURING_TO_BLACKWELL, (13, 2): _TURING_TO_BLACKWELL},
    (2, 14): {(12, 6): _MAXWELL_TO_HOPPER, (13, 0): _TURING_TO_BLACKWELL, (13, 2): _TURING_TO_BLACKWELL},
}
# Builds without PTX, which a driver could compile for newer GPUs, from torch 2.8 on. Source: the same.
_WITHOUT_PTX = ((12, 6), (12, 8))
# Least compute capability of builds for other processors than x86_64. Source: the same.
_LEAST_ELSEWHERE: Version = (8, 0)

_DRIVER = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4}){1,2}")
_RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-nvrtc")
_SUFFIXES = ("-cu11", "-cu12", "-cu13", "")


class Support(StrEnum):
    """The answer for an environment.

    Attributes:
        WORKS: The vendors list the combination.
        REFUSED: It cannot work.
        UNKNOWN: A fact is missing, or nobody lists the combination.
        UNUSED: No package is known to use a GPU.
    """

    WORKS = "works"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    UNUSED = "unused"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlatform:
    """The driver and the GPUs that an environment meets.

    Attributes:
        driver: Version of NVIDIA's driver; None if unknown.
        capabilities: Compute capability of each GPU; empty if unknown.
        processor: As ``uname -m`` has it.
        place: A noun for it in sentences, such as "this machine".
        is_amd: Its GPUs are AMD's.
    """

    driver: Version | None
    capabilities: tuple[Version, ...] = ()
    processor: str = "x86_64"
    place: str = "this machine"
    is_amd: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaNeed:
    """The CUDA release that a package of an environment was built for.

    Attributes:
        package: Name and version, for sentences.
        toolkit: Major and minor; the major alone if no more is known, empty if nothing is.
        rocm: Version of AMD's ROCm in place of CUDA; None for CUDA.
        torch: Major and minor of torch; None for another package.
        least_capability: Least compute capability that the package itself asks for.
        is_pinned: Another package of the lock was built for this build of it.
    """

    package: str
    toolkit: Version = ()
    rocm: str | None = None
    torch: Version | None = None
    least_capability: Version = (0, 0)
    is_pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """A published build of torch: its release, and the CUDA toolkit that it was built for."""

    torch: Version
    toolkit: Version

    @property
    def backend(self) -> str:
        """Return its name in versions, indexes and uv, such as cu126."""
        return f"cu{self.toolkit[0]}{self.toolkit[1]}"

    @property
    def name(self) -> str:
        return f"torch built for CUDA {_dotted(self.toolkit)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSupport:
    """An answer with its reason.

    Attributes:
        message: One sentence without a full stop; empty if the packages use no GPU.
        remedy: The nearest combination that works; None where none is needed or known.
    """

    support: Support
    message: str = ""
    remedy: str | None = None


def parse_driver(text: str | None) -> Version | None:
    """Return a driver's version, such as "535.54.03", as numbers; None for anything else."""
    if text is None or _DRIVER.fullmatch(text) is None:
        return None
    return tuple(map(int, text.split(".")))


def format_driver(version: Version) -> str:
    """Return the version of a driver as NVIDIA writes it, with two digits at least after the first dot."""
    return ".".join([str(version[0]), *(f"{number:02}" for number in version[1:])])


def newest_major(driver: Version) -> int | None:
    """Return the newest major release of CUDA whose programs a driver runs; None if none that is listed."""
    return max((major for major, least in LEAST_DRIVERS.items() if driver >= least), default=None)


def judge(packages: Iterable[tuple[str, str]], platform: GpuPlatform) -> GpuSupport:
    """Judge the packages of a lock, each with its normalized name and its version, on a platform."""
    versions = dict(packages)
    needs = needs_of(versions)
    answers = [_judge_need(need, platform) for need in needs]
    for support in (Support.REFUSED, Support.UNKNOWN, Support.WORKS):
        answer = next((answer for answer in answers if answer.support is support), None)
        if answer is not None:
            return answer
    torch = versions.get("torch", "")
    if torch.endswith("+cpu"):
        return GpuSupport(support=Support.UNUSED, message=f"torch {torch} is built for processors and uses no GPU")
    return GpuSupport(support=Support.UNUSED)


def describe_support(answer: GpuSupport) -> str:
    """Return an answer as a sentence about a run; empty if there is nothing to say."""
    if answer.support is Support.REFUSED:
        remedy = "" if answer.remedy is None else f". {answer.remedy.rstrip('.')}"
        return f"its environment cannot work here: {answer.message}{remedy}"
    if answer.support is Support.UNKNOWN:
        return f"unknown whether its environment works with the GPUs here: {answer.message}"
    return answer.message


def fitting_builds(
    packages: Iterable[tuple[str, str]], platforms: Sequence[GpuPlatform], *, may_be_older: bool
) -> tuple[TorchBuild, ...]:
    """Return the builds of torch that may take the place of that of a lock on all platforms, the nearest first.

    They are of its release, or the newest before it that is listed, with newer toolkits first; and then of older
    releases if these may be taken. None if another package of the lock was built for its torch.
    """
    need = next((need for need in needs_of(dict(packages)) if need.torch is not None), None)
    if need is None or need.torch is None or need.is_pinned:
        return ()
    own = max((torch for torch in TORCH_CAPABILITIES if torch <= need.torch), default=need.torch)
    return tuple(build for build in _builds(need, platforms) if may_be_older or build.torch == own)


def needs_of(versions: Mapping[str, str]) -> tuple[CudaNeed, ...]:
    """Return the CUDA releases that packages were built for, by name and version."""
    runtimes = _runtimes(versions)
    needs: list[CudaNeed] = []
    torch = _torch_need(versions, runtimes)
    if torch is not None:
        needs.append(torch)
    for major in (12, 13):
        version = versions.get(f"jax-cuda{major}-plugin")
        if version is not None:
            toolkit = next((toolkit for toolkit in runtimes if toolkit[0] == major), (major,))
            # Source: docs.jax.dev, Installation: SM 5.2 or newer with CUDA 12, 7.5 with CUDA 13.
            least = (5, 2) if major == 12 else (7, 5)
            needs.append(CudaNeed(package=f"jax {version}", toolkit=toolkit, least_capability=least))
    tensorflow = versions.get("tensorflow")
    if tensorflow is not None:
        # Without NVIDIA's packages it takes a CUDA of the system, if any.
        toolkit = next((toolkit for toolkit in runtimes if toolkit[0] == 12), ())
        # Source: release notes of TensorFlow 2.17, which removed 5.x from wheels.
        least = (6, 0) if _minor_of(tensorflow) >= (2, 17) else (0, 0)
        needs.append(CudaNeed(package=f"tensorflow {tensorflow}", toolkit=toolkit, least_capability=least))
    vllm = versions.get("vllm")
    if vllm is not None and torch is not None and torch.rocm is None and torch.toolkit:
        # Source: docs.vllm.ai, Installation, GPU: 7.0 up to v0.14; 7.5 in its newest edition.
        least = (7, 0) if _minor_of(vllm) <= (0, 14) else (7, 5)
        needs.append(CudaNeed(package=f"vllm {vllm}", toolkit=torch.toolkit, least_capability=least))
    taken = {need.toolkit for need in needs}
    needs += [CudaNeed(package=name, toolkit=toolkit) for toolkit, name in runtimes.items() if toolkit not in taken]
    return tuple(needs)


def _runtimes(versions: Mapping[str, str]) -> dict[Version, str]:
    """Return the toolkits of NVIDIA's runtime packages, each with name and version of the package."""
    runtimes: dict[Version, str] = {}
    for suffix in _SUFFIXES:
        name = next((name for base in _RUNTIMES if (name := base + suffix) in versions), None)
        toolkit = () if name is None else _minor_of(versions[name])
        if name is not None and len(toolkit) == 2 and toolkit[0] > 0:
            runtimes.setdefault(toolkit, f"{name} {versions[name]}")
    return runtimes


def _torch_need(versions: Mapping[str, str], runtimes: Mapping[Version, str]) -> CudaNeed | None:
    version = versions.get("torch")
    if version is None:
        return None
    release, _, local = version.partition("+")
    torch, package = _minor_of(release), f"torch {version}"
    if local.startswith("cpu"):
        return None
    if local.startswith("rocm"):
        return CudaNeed(package=package, rocm=local.removeprefix("rocm"), torch=torch)
    build = re.fullmatch(r"cu([0-9]{2})([0-9])", local)
    if build is not None:
        toolkit: Version = (int(build[1]), int(build[2]))
    elif local:
        toolkit = ()
    else:
        # Of PyPI: CUDA 11 in 2.0, CUDA 12 up to 2.10, then CUDA 13, as their metadata say.
        major = 11 if torch < (2, 1) else 12 if torch < (2, 11) else 13
        toolkit = next((toolkit for toolkit in runtimes if toolkit[0] == major), next(iter(runtimes), ()))
    return CudaNeed(package=package, toolkit=toolkit, torch=torch, is_pinned="vllm" in versions)


def _judge_need(need: CudaNeed, platform: GpuPlatform) -> GpuSupport:
    if platform.is_amd and need.rocm is not None:
        return _unknown(f"{need.package} is built for AMD's ROCm {need.rocm}, of which no table is here")
    if platform.is_amd and need.toolkit:
        message = f"{need.package} brings CUDA {_dotted(need.toolkit)}, and {platform.place} has AMD's GPUs"
        return GpuSupport(support=Support.REFUSED, message=message, remedy="Take a build for AMD's ROCm.")
    if need.rocm is not None:
        if platform.driver is None and not platform.capabilities:
            return _unknown(f"{need.package} needs AMD's ROCm {need.rocm}, and {_which(platform)} is not known")
        message = f"{need.package} is built for AMD's ROCm {need.rocm}, and {platform.place} has NVIDIA's GPUs"
        return GpuSupport(support=Support.REFUSED, message=message, remedy=_sentence(_nearest(need, platform)))
    if not need.toolkit:
        return _unknown(f"the CUDA version of {need.package} does not follow from its lock")
    brings = f"{need.package} brings CUDA {_dotted(need.toolkit)}"
    least = LEAST_DRIVERS.get(need.toolkit[0])
    if least is None:
        return _unknown(f"{brings}, whose least driver is not listed")
    wanted = format_driver(least)
    if platform.driver is None:
        return _unknown(f"{brings}, which needs driver {wanted} or newer, and {_which(platform)} is not known")
    if platform.driver < least:
        message = (
            f"{brings}, which needs driver {wanted} or newer; {platform.place} has {format_driver(platform.driver)}"
        )
        others = [_nearest(need, platform), f"install driver {wanted} or newer"]
        remedy = ", or ".join(other for other in others if other is not None)
        return GpuSupport(support=Support.REFUSED, message=message, remedy=_sentence(remedy))
    if not platform.capabilities:
        return _unknown(f"{brings}, and the GPUs of {platform.place} are not known")
    per_gpu = {capability: _has_code(need, capability, platform.processor) for capability in platform.capabilities}
    if all(support is Support.WORKS for support in per_gpu.values()):
        return GpuSupport(support=Support.WORKS, message=f"{brings}, which {_how(need, platform.driver)}")
    capability, support = next(item for item in per_gpu.items() if item[1] is not Support.WORKS)
    if all(other is Support.REFUSED for other in per_gpu.values()):
        message = (
            f"{brings}, which has no code for GPUs of compute capability {_dotted(capability)} as {platform.place} has"
        )
        return GpuSupport(support=Support.REFUSED, message=message, remedy=_sentence(_nearest(need, platform)))
    if support is Support.REFUSED:
        return _unknown(f"{brings}, which has code for some GPUs of {platform.place} only")
    return _unknown(f"{brings}; nobody lists whether it has code for GPUs of compute capability {_dotted(capability)}")


def _has_code(need: CudaNeed, capability: Version, processor: str) -> Support:
    """Return whether a package has code for a GPU."""
    major = need.toolkit[0]
    if capability < max(LEAST_CAPABILITIES[major], need.least_capability):
        return Support.REFUSED
    if need.torch is not None:
        built = TORCH_CAPABILITIES.get(need.torch, {}).get(need.toolkit)
        if built is None or (processor != "x86_64" and capability < _LEAST_ELSEWHERE):
            return Support.UNKNOWN
        # Machine code runs on GPUs of the same major and at least its minor: CUDA C++ Programming Guide, Binary
        # Compatibility.
        if any(code[0] == capability[0] and code[1] <= capability[1] for code in built):
            return Support.WORKS
        is_without = need.torch >= (2, 8) and need.toolkit in _WITHOUT_PTX
        return Support.REFUSED if is_without or capability < min(built) else Support.UNKNOWN
    first = FIRST_TOOLKITS.get(capability)
    if first is None or len(need.toolkit) < 2:
        return Support.UNKNOWN
    return Support.WORKS if need.toolkit >= first else Support.UNKNOWN


def _nearest(need: CudaNeed, platform: GpuPlatform) -> str | None:
    """Return the nearest build of a package that works, as an order; None if none is listed."""
    if need.torch is None:
        is_jax = need.package.startswith("jax ") and need.toolkit[:1] == (13,)
        driver = platform.driver
        is_new = driver is not None and driver >= LEAST_DRIVERS[12]
        has_code = all(capability >= (5, 2) for capability in platform.capabilities)
        return "take jax[cuda12]" if is_jax and is_new and has_code else None
    build = None if need.is_pinned else next(_builds(need, (platform,)), None)
    if build is None:
        return None
    older = "" if build.torch == need.torch else f" {_dotted(build.torch)}"
    return (
        f"take torch{older} built for CUDA {_dotted(build.toolkit)}, from the index "
        f"https://download.pytorch.org/whl/{build.backend} or by UV_TORCH_BACKEND={build.backend}"
    )


def _builds(need: CudaNeed, platforms: Sequence[GpuPlatform]) -> Iterator[TorchBuild]:
    """Yield the builds of a need's torch, then of older ones, against which nothing speaks on any platform."""
    assert need.torch is not None
    versions = [need.torch, *sorted((torch for torch in TORCH_CAPABILITIES if torch < need.torch), reverse=True)]
    for torch in versions:
        for toolkit in sorted(TORCH_CAPABILITIES.get(torch, ()), reverse=True):
            other = CudaNeed(package="torch", toolkit=toolkit, torch=torch)
            if toolkit != need.toolkit and all(_may_work(other, platform) for platform in platforms):
                yield TorchBuild(torch=torch, toolkit=toolkit)


def _may_work(need: CudaNeed, platform: GpuPlatform) -> bool:
    """Return whether nothing that is known speaks against a build."""
    is_new = platform.driver is None or platform.driver >= LEAST_DRIVERS[need.toolkit[0]]
    return (is_new and not platform.is_amd) and all(
        _has_code(need, capability, platform.processor) is Support.WORKS for capability in platform.capabilities
    )


def _how(need: CudaNeed, driver: Version) -> str:
    full = TOOLKIT_DRIVERS.get(need.toolkit)
    works = f"driver {format_driver(driver)} runs"
    if full is None or driver >= full:
        return works
    return f"{works} by minor version compatibility; from {format_driver(full)} on it runs in full"


def _which(platform: GpuPlatform) -> str:
    return f"the driver of {platform.place}"


def _unknown(message: str) -> GpuSupport:
    return GpuSupport(support=Support.UNKNOWN, message=message)


def _sentence(order: str | None) -> str | None:
    return None if not order else f"{order[0].upper()}{order[1:]}."


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _minor_of(version: str) -> Version:
    """Return major and minor of a version; less if it has not as many numbers."""
    numbers = re.match(r"([0-9]{1,4})(?:\.([0-9]{1,4}))?", version)
    return () if numbers is None else tuple(int(number) for number in numbers.groups() if number is not None)
