"""Which files of a directory belong to a run."""

import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.cluster import project_files
from fairlead.cluster.project_files import Found, Ignored, TooMany, walk


def paths(directory: Path, ignored: Ignored | None = None) -> list[str]:
    return [each.path for each in walk(directory, ignored=ignored) if isinstance(each, Found)]


def write(directory: Path, *names: str, text: str = "") -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)


def test_what_is_nobodys_source_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "a.py", ".git/x", "__pycache__/a.pyc", "env/pyvenv.cfg", "env/bin/python", "c/CACHEDIR.TAG", "c/d")
    (tmp_path / "link.py").symlink_to("a.py")
    assert paths(tmp_path) == ["a.py"]


def test_rules_of_the_repository_hold_in_a_directory_below_it(tmp_path: Path) -> None:
    write(tmp_path, ".git/HEAD", "proj/a.py", "proj/w.pt", "proj/keep.pt", "proj/data/x")
    (tmp_path / ".gitignore").write_text("*.pt\ndata/\n")
    (tmp_path / "proj" / ".gitignore").write_text("!keep.pt\n")
    assert paths(tmp_path / "proj") == [".gitignore", "a.py", "keep.pt"]
    # Those of a directory that the repository ignores as a whole say nothing in it.
    assert paths(tmp_path / "proj" / "data") == ["x"]


def test_answers_are_remembered_until_the_rules_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a.py", "w.pt")
    write(tmp_path, ".gitignore", text="*.pt\n")
    first = Ignored()
    assert paths(tmp_path, first) == [".gitignore", "a.py"]
    assert first.is_changed
    again = Ignored(first.told())
    with monkeypatch.context() as patch:
        patch.setattr(project_files, "_is_ignored", lambda *_: pytest.fail("it was known"))
        assert paths(tmp_path, again) == [".gitignore", "a.py"]
    assert not again.is_changed
    assert again.told() == first.told()
    write(tmp_path, ".gitignore", text="*.py\n")
    assert paths(tmp_path, Ignored(first.told())) == [".gitignore", "w.pt"]


def test_bounds_end_the_walk_or_leave_out_a_directory(tmp_path: Path) -> None:
    write(tmp_path, "a.py", *(f"data/{number}" for number in range(5)))
    found = list(walk(tmp_path, most_in_one=3))
    assert [str(each) if isinstance(each, TooMany) else each.path for each in found] == ["a.py", "data"]
    with pytest.raises(TooMany):
        list(walk(tmp_path, most=3))


def test_a_directory_without_rules_needs_nobody_who_reads_them(tmp_path: Path) -> None:
    write(tmp_path, "a.py")
    code = f"import sys; from fairlead.cluster.project_files import walk; list(walk({str(tmp_path)!r}))"
    ended = subprocess.run(
        [sys.executable, "-c", f"{code}; sys.exit('pathspec' in sys.modules)"], check=False, timeout=60
    )
    assert ended.returncode == 0
