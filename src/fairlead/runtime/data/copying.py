"""Copies the data sets with ``mode: copy`` before the ranks start: ``python -m fairlead.runtime.data.copying``."""

import os
import sys

from fairlead.errors import RuntimeFault
from fairlead.runtime.data.sources import data_of, names_in
from fairlead.runtime.data.trees import foreign_files


def main() -> int:
    """Copy what the environment describes; print a sentence and return 1 if it cannot be done."""
    try:
        for name in names_in(os.environ, mode="copy"):
            data = data_of(os.environ, name)
            path = data.path
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
