"""Downloads a model from an object store to the machine that serves it, so that a predictor reads local files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from fairlead.errors import RuntimeFault
from fairlead.runtime.checkpoint.manifest import MANIFEST, DamagedError, Manifest, verify
from fairlead.runtime.paths import UnsafeName, below
from fairlead.runtime.places import is_url, open_place, translated
from fairlead.runtime.serving.predictor import Unusable
from fairlead.runtime.serving.published_model import model_of


def fetched_model(model: str, directory: str | None, env: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a local path of a model, downloaded if needed.

    Args:
        model: A path, which is returned as it is, or the URL of an object or of all objects below it.
        directory: Parent of the directory created for it; None for the system's temporary directory.
        env: Variables of the replica; with ``FAIRLEAD_MODEL_SIGNER`` the model is a published one.

    Raises:
        Unusable: The model cannot be fetched, or is a checkpoint that differs from what was saved.
    """
    if env.get("FAIRLEAD_MODEL_SIGNER"):
        try:
            return model_of(env)
        except RuntimeFault as error:
            raise Unusable(str(error)) from error
    if not is_url(model):
        return model
    try:
        download_dir = Path(tempfile.mkdtemp(prefix="fairlead-model-", dir=directory))
        system, root = open_place(model, what="models")
        names = _file_names(system, root, model)
        for name in names:
            path = below(download_dir, os.path.basename(root) if name == root else name.removeprefix(f"{root}/"))
            path.parent.mkdir(parents=True, exist_ok=True)
            translated(partial(system.get_file, name, str(path)), f"{model} cannot be read")
        if (download_dir / MANIFEST).exists():
            manifest = Manifest.from_json((download_dir / MANIFEST).read_bytes())
            verify(download_dir, manifest, manifest.files)
    except (OSError, RuntimeFault, DamagedError, UnsafeName) as error:
        raise Unusable(f"the model {model} cannot be fetched: {error}") from error
    return str(download_dir / os.path.basename(root) if names == [root] else download_dir)


def _file_names(system: object, root: str, model: str) -> list[str]:
    names = translated(partial(system.find, root), f"{model} cannot be listed")  # type: ignore[attr-defined]
    if not names:
        raise FileNotFoundError("nothing is there")
    return sorted(names)
