"""The specs of users as frozen values. No I/O, no clock; the standard library only, except YAML at the edge.

Importing the module of a spec never imports YAML; ``parse`` and ``load_file`` import it when called.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlead.specs.formats.reading import load_file as load_file
    from fairlead.specs.formats.reading import parse as parse
    from fairlead.specs.formats.rendering import render as render
    from fairlead.specs.formats.rendering import to_yaml as to_yaml
    from fairlead.specs.formats.schema import json_schema as json_schema
    from fairlead.specs.formats.serialization import from_json as from_json
    from fairlead.specs.formats.serialization import to_json as to_json
    from fairlead.specs.keys import Spec as Spec
    from fairlead.specs.pool import Pool as Pool
    from fairlead.specs.team import Team as Team
    from fairlead.specs.training import Training as Training

_HOMES = {
    "Pool": "pool",
    "Spec": "keys",
    "Team": "team",
    "Training": "training",
    "from_json": "formats.serialization",
    "json_schema": "formats.schema",
    "load_file": "formats.reading",
    "parse": "formats.reading",
    "render": "formats.rendering",
    "to_json": "formats.serialization",
    "to_yaml": "formats.rendering",
}

__all__ = [
    "Pool",
    "Spec",
    "Team",
    "Training",
    "from_json",
    "json_schema",
    "load_file",
    "parse",
    "render",
    "to_json",
    "to_yaml",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fairlead.specs' has no attribute {name!r}")
    return getattr(import_module(f"fairlead.specs.{home}"), name)
