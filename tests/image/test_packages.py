"""The packages of the image are those that Fairlead is tested with."""

import re
from pathlib import Path

from fairlead.cli.imaging import BASE, PLATFORMS
from fairlead.control.image import building
from fairlead.control.image.packages import PINS, own_files

ROOT = Path(__file__).parents[2]
_PIN = re.compile(r"([a-z0-9-]+)(?:\[[a-z,]+\])?==(\S+)")


def _pins(path: Path) -> dict[str, set[str]]:
    """Versions by name: a package may have one for each Python."""
    found: dict[str, set[str]] = {}
    for line in path.read_text().splitlines():
        pin = _PIN.match(line)
        if pin is not None:
            found.setdefault(pin[1], set()).add(pin[2])
    return found


def test_every_pin_is_one_of_those_that_the_tests_run_with() -> None:
    tested = _pins(ROOT / "requirements" / "dev.txt")
    for name, versions in _pins(PINS).items():
        assert versions <= tested[name], name


def test_every_pin_holds_whatever_python_fetches_it() -> None:
    lines = PINS.read_text().splitlines()
    assert not [line for line in lines if ";" in line]
    assert len(_pins(PINS)) == sum("==" in line for line in lines)
    for package in ("numpy", "aiohttp", "jinja2", "prometheus-client", "psycopg-binary", "websockets", "click"):
        assert package in _pins(PINS)


def test_the_command_line_knows_the_base_image_and_the_platforms_without_importing_them() -> None:
    assert (BASE, PLATFORMS) == (building.DEFAULT_BASE, building.PLATFORMS)


def test_fairlead_itself_is_taken_whole_but_for_what_python_leaves_beside_it() -> None:
    files = own_files()
    assert {"fairlead/__init__.py", "fairlead/cli/main.py", "fairlead/web/static/app.js"} <= set(files)
    assert not [name for name in files if "__pycache__" in name]


def test_the_containerfile_says_the_same_as_what_is_built() -> None:
    said = (ROOT / "Containerfile").read_text()
    assert f"ARG BASE={building.DEFAULT_BASE}\n" in said
    assert f"ENV PYTHONPATH={building.FAIRLEAD}:{building.PACKAGES}\n" in said
    assert f"--target {building.PACKAGES}" in said
    assert f"COPY src/fairlead {building.FAIRLEAD}/fairlead\n" in said
    assert f"USER {building.USER}\n" in said
    assert 'ENTRYPOINT ["fairlead"]\n' in said
    assert str(PINS.relative_to(ROOT)) in said
