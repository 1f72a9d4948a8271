"""Writes the stored code of a run into a directory."""

import os
from pathlib import Path

from fairlead.cluster.kept_code import KeptCode
from fairlead.errors import Conflict
from fairlead.runtime.paths import UnsafeName, below


def write_code(code: KeptCode, directory: Path) -> int:
    """Write the stored files into a new or empty directory, and return their number.

    Raises:
        Conflict: There are none, the directory has files, or a file cannot be read any more.
    """
    if code.files is None:
        raise Conflict(f"There are no files to write: {code.why}.")
    if directory.exists() and (not directory.is_dir() or os.listdir(directory)):
        raise Conflict(f"{directory} is there already; give a directory that is not, or an empty one.")
    for file in code.files:
        content = code.read(file.path)
        if content is None:
            raise Conflict(f"{file.path} cannot be read any more from what was kept.")
        try:
            place = below(directory, file.path)
        except UnsafeName as error:
            raise Conflict(f"The stored code of the run is not written: {error}.") from error
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        place.chmod(0o755 if file.executable else 0o644)
    return len(code.files)
