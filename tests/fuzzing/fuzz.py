"""Fuzzes one target until its time is over or an input makes it fail; needs an environment that has atheris.

python -m tests.fuzzing.fuzz NAME CORPUS -max_total_time=60
"""

import sys

import atheris

# Only these: to instrument everything that is imported takes minutes.
with atheris.instrument_imports(include=["fairlead"]):
    from tests.fuzzing.targets import TARGETS

if __name__ == "__main__":
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target.read)
    atheris.Fuzz()
