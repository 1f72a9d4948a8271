"""Environments of their own for libraries that are no requirement of a checkout; they share this one's torch."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

WANTED = {
    "lightning": ("lightning==2.6.6",),
    "huggingface": ("transformers==5.23.0", "accelerate==1.15.0"),
    "tritonclient": ("tritonclient[http]==2.73.0",),
    "flower": ("flwr==1.42.0", "scikit-learn==1.9.1"),
    "data-stores": ("gcsfs==2026.10.1", "huggingface-hub==2.4.0"),
    "dp-accounting": ("dp-accounting==0.6.0",),
    "flyte": ("flytekit==1.16.31",),
    "metaflow": ("metaflow==2.19.39",),
    "optuna": ("optuna==5.0.0",),
    "prefect": ("prefect==3.9.1",),
    "openai": ("openai==3.54.0",),
    "kserve": ("kserve==0.21.0",),
    "accelerate": ("accelerate==1.15.0",),
    "atheris": ("atheris==3.0.0",),
    "deepspeed": ("deepspeed==0.19.8",),
    "jax": ("jax[cpu]==0.10.2",),
    "jupyter": ("jupyter-server==2.21.1", "ipykernel==7.4.0"),
    "lightgbm": ("lightgbm==4.7.0",),
    "mlflow": ("mlflow==3.17.2",),
    "mpi": ("mpi4py==4.1.2", "mpich==5.0.2"),
    "litellm": ("litellm[proxy]==1.108.7",),
    "ray": ("ray==2.60.0",),
    "ray-jobs": ("ray[default]==2.60.0",),
    "ray-serve": ("ray[serve]==2.60.0",),
    "ray-tune": ("ray[tune]==2.60.0", "optuna==5.0.0"),
    "schemathesis": ("schemathesis==4.32.5",),
    "tensorflow": ("tensorflow-cpu==2.21.0",),
    "tensorboard": ("tensorboard==2.21.0",),
    "wandb": ("wandb==0.31.0",),
    "xgboost": ("xgboost-cpu==3.2.0",),
}
INSTALL_TIMEOUT_S = 600.0
SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def interpreter_with(framework: str) -> Path:
    """The Python of an environment that has the framework; made at first, kept beside this one's packages.

    Skips the test when it cannot be made, as without a package index.
    """
    found = find_interpreter(framework)
    if isinstance(found, str):
        pytest.skip(found)
    return found


def find_interpreter(framework: str) -> Path | str:
    """The same; a sentence when it cannot be made."""
    packages = WANTED[framework]
    tag = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:8]
    home = Path(sys.prefix) / "frameworks" / f"{framework}-{tag}"
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        problem = _make(home, python, packages)
        if problem is not None:
            return f"no environment with {' '.join(packages)}: {problem}"
        (home / "complete").touch()
    return python


def _make(home: Path, python: Path, packages: tuple[str, ...]) -> str | None:
    """Why it could not be made; None when it is there."""
    uv = Path(sys.executable).parent / "uv"
    if not uv.exists():
        return "there is no uv beside this Python"
    home.parent.mkdir(exist_ok=True)
    without_torch = home.parent / "without-torch.txt"
    without_torch.write_text('torch ; sys_platform == "none"\n')
    for argv in (
        ["venv", "--python", sys.executable, str(home)],
        ["pip", "install", "--python", str(python), "--override", str(without_torch), *packages],
    ):
        try:
            ended = subprocess.run(
                [str(uv), "--no-config", *argv], capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return f"uv {argv[0]} took longer than {INSTALL_TIMEOUT_S:.0f} s"
        if ended.returncode != 0:
            return (ended.stderr.strip().splitlines() or ["uv failed"])[-1]
    shared = Path(sys.prefix) / SITE
    (home / SITE / "shared.pth").write_text(f"import site; site.addsitedir({str(shared)!r})\n")
    return None
