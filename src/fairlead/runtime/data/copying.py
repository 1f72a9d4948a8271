"""Copies the data sets with ``mode: copy`` before the ranks start: ``python -m fairlead.runtime.data.copying``."""

import contextlib
import os
import sys
from pathlib import Path

from fairlead.errors import RuntimeFault
from fairlead.runtime.data import variable_of
from fairlead.runtime.data.sources import data_of, names_in
from fairlead.runtime.data.trees import foreign_files


def main() -> int:
    """Copy what the environment describes; print a sentence and return 1 if it cannot be done."""
    try:
        for name in names_in(os.environ, mode="copy"):
            data = data_of(os.environ, name)
            path = data.path
            place = os.environ.get(variable_of(name))
            if place is not None and Path(place) != path:  # the version was not known before
                Path(place).parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    Path(place).symlink_to(path)
            print(f"fairlead: data {name}: version {data.version} is at {path}")
            foreign = foreign_files(data.entries(), path)
            if foreign:
                more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
                print(
                    f"fairlead: data {name}: {foreign[0]}{more} beside its files is not of this version, but of a "
                    f"program that wrote there; `fairlead data rm {data.version}` removes it with the copy"
                )
            data.close()
    except RuntimeFault as error:
        print(f"fairlead: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
