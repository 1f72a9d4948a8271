"""Reads the ``config.json`` of a model that a spec names."""

import json
from pathlib import Path
from typing import Any

from fairlead.errors import UnknownModel
from fairlead.specs.training import Training


def read_config(spec: Training, directory: Path | None) -> dict[str, Any] | None:
    """Read the ``config.json`` of ``model``; return None if it names none.

    Args:
        directory: Base of a relative name; None for the run's working directory.

    Raises:
        UnknownModel: The file cannot be read, or does not contain an object.
    """
    if spec.model is None or spec.model.config is None:
        return None
    return read_json(Path(directory or spec.workdir or ".", spec.model.config).expanduser(), "model.config: ")


def read_json(path: Path, key: str = "") -> dict[str, Any]:
    """Read a ``config.json``.

    Args:
        key: Prefix of error messages.

    Raises:
        UnknownModel: The file cannot be read, or does not contain an object.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        hint = "; give the path of a config.json of Hugging Face on this machine; names of its Hub are not looked up"
        raise UnknownModel(f"{key}{path} cannot be read: {error.strerror}{hint if key else ''}") from error
    except ValueError as error:
        raise UnknownModel(f"{key}{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UnknownModel(f"{key}{path} holds no object; give a config.json of Hugging Face")
    return config
