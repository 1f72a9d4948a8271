"""The wheel of each package for the Python and platform of an image, from locks for one platform and for all."""

import pytest

from fairlead.control.image.locks import choose_wheels, lock_of, wheels_in
from fairlead.errors import Conflict

PYTHON, MACHINE = "3.12.4", "x86_64"
URL = "https://files.example/"


def a_lock(*packages: str, python: str = ">=3.10") -> str:
    return "\n".join(['lock-version = "1.0"', f'requires-python = "{python}"', *packages])


def a_package(name: str, *files: str, more: str = "") -> str:
    wheels = ", ".join(f'{{ url = "{URL}{file}", hashes = {{ sha256 = "{file[:3]}" }} }}' for file in files)
    return f'[[packages]]\nname = "{name}"\nversion = "1.0"\nwheels = [{wheels}]\n{more}'


def test_the_most_particular_wheel_that_fits_is_taken() -> None:
    lock = a_lock(
        a_package(
            "fl",
            "fl-1.0-py3-none-any.whl",
            "fl-1.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "fl-1.0-cp312-cp312-musllinux_1_2_x86_64.whl",
            "fl-1.0-cp312-cp312-manylinux_2_28_aarch64.whl",
            "fl-1.0-cp312-cp312-manylinux_2_39_x86_64.whl",
            "fl-1.0-cp313-cp313-manylinux_2_28_x86_64.whl",
        )
    )
    (wheel,) = choose_wheels(lock, PYTHON, MACHINE)
    assert wheel.filename == "fl-1.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    (other,) = choose_wheels(lock, PYTHON, "aarch64")
    assert other.filename.endswith("aarch64.whl")
    (abi3,) = choose_wheels(a_lock(a_package("fl", "fl-1.0-cp39-abi3-manylinux_2_28_x86_64.whl")), PYTHON, MACHINE)
    assert "abi3" in abi3.filename


def test_packages_of_other_platforms_are_left_out() -> None:
    lock = a_lock(
        a_package("colours", "colours-1.0-py3-none-any.whl", more="marker = \"sys_platform == 'win32'\"\n"),
        a_package("linux", "linux-1.0-py3-none-any.whl", more="marker = \"platform_machine == 'x86_64'\"\n"),
        a_package("old", "old-1.0-py3-none-any.whl", more="marker = \"python_version < '3.11'\"\n"),
        a_package("extra", "extra-1.0-py3-none-any.whl", more="marker = \"'gpu' in extras\"\n"),
    )
    assert [wheel.name for wheel in choose_wheels(lock, PYTHON, MACHINE)] == ["linux"]


@pytest.mark.parametrize(
    ("lock", "problem"),
    [
        (a_lock(a_package("fl", "fl-1.0-cp310-cp310-manylinux_2_28_x86_64.whl")), "fl 1.0 has no wheel for Python 3"),
        (a_lock('[[packages]]\nname = "fl"\nversion = "1.0"\n'), "fl 1.0 has no wheel"),
        (a_lock(python=">=3.13"), "the lock is for Python >=3.13, and the base image has 3.12.4"),
        (a_lock(a_package("fl", "fl-1.0-py3-none-any.whl"), a_package("fl", "fl-2.0-py3-none-any.whl")), "fl twice"),
    ],
)
def test_what_an_image_cannot_have_is_named(lock: str, problem: str) -> None:
    with pytest.raises(Conflict, match=problem):
        choose_wheels(lock, PYTHON, MACHINE)


def test_a_wheel_without_a_hash_is_not_taken() -> None:
    lock = a_lock('[[packages]]\nname = "fl"\nwheels = [{ url = "https://e/fl-1.0-py3-none-any.whl", hashes = {} }]')
    with pytest.raises(Conflict, match="has no wheel"):
        choose_wheels(lock, PYTHON, MACHINE)


def test_the_chosen_wheels_are_a_lock_again() -> None:
    lock = a_lock(
        a_package("b", "b-1.0-py3-none-any.whl", more='index = "https://index.example/simple"\n'),
        a_package("a", "a-1.0%2Bcu1-py3-none-any.whl"),
    )
    wheels = choose_wheels(lock, PYTHON, MACHINE)
    text = lock_of(reversed(wheels), PYTHON)
    assert wheels_in(text) == wheels == choose_wheels(text, PYTHON, MACHINE)
    assert wheels[0].filename == "a-1.0+cu1-py3-none-any.whl"
