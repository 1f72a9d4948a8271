"""Reads the weights of one module from a checkpoint outside a run, for a predictor that serves a trained model.

Files are verified before they are read. If a checkpoint of several is damaged, the one before it is used, as in a run.
"""

from pathlib import Path
from typing import Any

from fairlead.runtime.checkpoint.distcp import CheckpointReader
from fairlead.runtime.checkpoint.manifest import MANIFEST, DamagedError, Manifest, verify
from fairlead.runtime.checkpoint.phases import rank_directory
from fairlead.runtime.checkpoint.store import STEP_NAME
from fairlead.runtime.checkpoint.tensors import FOLDER, RANK
from fairlead.runtime.errors import CheckpointMismatch


def read_weights(place: str | Path, name: str = "model") -> dict[str, Any]:
    """Return the state of a module, for its ``load_state_dict``; tensors are in main memory.

    Args:
        place: A checkpoint, or a directory of checkpoints, of which the newest undamaged one is read.
        name: The name under which ``run.resume()`` was given the module.

    Raises:
        FileNotFoundError: There is no complete checkpoint.
        CheckpointMismatch: The checkpoint holds no module of that name.
        ValueError: Every checkpoint is damaged.
    """
    root = Path(place)
    folders = [root] if (root / MANIFEST).exists() else _newest_first(root)
    if not folders:
        raise FileNotFoundError(
            f"{str(place)!r} holds no complete checkpoint; give a checkpoint or a directory of them"
        )
    damage = ""
    for directory in folders:
        try:
            return _read(directory, name)
        except DamagedError as error:
            damage = f"{directory.name}: {error}" + (f"; {damage}" if damage else "")
    raise ValueError(f"every checkpoint in {str(place)!r} is damaged: {damage}")


def _newest_first(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    folders = [path for path in root.iterdir() if STEP_NAME.fullmatch(path.name) and (path / MANIFEST).exists()]
    return sorted(folders, reverse=True)


def _read(directory: Path, name: str) -> dict[str, Any]:
    manifest = Manifest.from_json((directory / MANIFEST).read_bytes())
    folder = f"{rank_directory(0)}/{FOLDER}" if manifest.content.get("tensors") == RANK else FOLDER
    names = [file for file in manifest.files if file.startswith(f"{folder}/")]
    if name not in manifest.content.get("shared", ()) or not names:
        held = ", ".join(manifest.content.get("shared", ())) or "no tensors"
        raise CheckpointMismatch(f"{directory} holds no module {name!r}; it holds {held}")
    verify(directory, manifest, names)
    reader = CheckpointReader(directory / folder)
    prefix = f"_{name}."
    state = {
        str(path[1])[len(prefix) :]: reader.read(flat)
        for flat, path in reader.paths.items()
        if path[0] == "modules" and str(path[1]).startswith(prefix)
    }
    if not state:
        raise CheckpointMismatch(f"{directory} holds {name!r}, which is not a module")
    return state
