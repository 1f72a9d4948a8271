"""Which files of a directory belong to a run."""

import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.cluster import project_files
from fairlead.cluster.project_files import Ignored, ProjectFile, TooMany, Withheld, no_project, walk
from fairlead.cluster.revisions import read_revision
from fairlead.cluster.secret_files import EXAMPLES, FILES, is_secret


def paths(directory: Path, ignored: Ignored | None = None) -> list[str]:
    return [each.path for each in walk(directory, ignored=ignored) if isinstance(each, ProjectFile)]


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
    again = Ignored(first.answers())
    with monkeypatch.context() as patch:
        patch.setattr(project_files, "_verdict", lambda *_: pytest.fail("it was known"))
        assert paths(tmp_path, again) == [".gitignore", "a.py"]
    assert not again.is_changed
    assert again.answers() == first.answers()
    write(tmp_path, ".gitignore", text="*.py\n")
    assert paths(tmp_path, Ignored(first.answers())) == [".gitignore", "w.pt"]


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


SECRETS = [
    ".env", ".env.local", "deploy/.ENV", ".envrc", ".netrc", ".git-credentials", ".ssh/id_rsa", ".aws/credentials",
    ".kube/config", ".docker/config.json", "server.pem", "tls.key", "id_rsa", "id_ed25519.pub", ".pypirc", ".npmrc",
    "my-service-account.json", "service_account_prod.json", "credentials.json", "client_secret_1.json", "kubeconfig",
]  # fmt: skip
OTHERS = [".env.example", "environment.py", "keys.py", "key/a.py", "config.json", "env/a.py", ".github/x.yaml"]


def withheld(directory: Path) -> list[str]:
    return [each.path for each in walk(directory) if isinstance(each, Withheld)]


def test_files_of_credentials_are_withheld_and_named(tmp_path: Path) -> None:
    write(tmp_path, *SECRETS, *OTHERS)
    assert sorted(paths(tmp_path)) == sorted(OTHERS)
    tops = {f"{name.partition('/')[0]}/" if name.startswith((".ssh", ".aws", ".kube", ".docker")) else name
            for name in SECRETS}  # fmt: skip
    assert set(withheld(tmp_path)) == tops
    assert sorted(each.path for each in walk(tmp_path, secrets=True)) == sorted(SECRETS + OTHERS)  # type: ignore[union-attr]


def test_a_fairleadignore_has_the_last_word(tmp_path: Path) -> None:
    write(tmp_path, "ca.pem", "own.pem", "data.csv", "kept.csv", "a.py", "sub/ca.pem", "sub/notes.txt", "made.bin")
    write(tmp_path, ".gitignore", text="*.bin\n")
    write(tmp_path, ".fairleadignore", text="!ca.pem\n*.csv\n!kept.csv\n!made.bin\n")
    write(tmp_path, "sub/.fairleadignore", text="notes.txt\nca.pem\n")
    memory = Ignored()
    for known in (memory, Ignored(memory.answers())):
        assert paths(tmp_path, known) == [
            ".fairleadignore", ".gitignore", "a.py", "ca.pem", "kept.csv", "made.bin", "sub/.fairleadignore",
        ]  # fmt: skip
    assert withheld(tmp_path) == ["own.pem"]


@pytest.mark.parametrize("form", ["{home}", "/", "{home}/../{name}", "{link}"])
def test_a_home_directory_is_no_project_however_it_is_named(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "link").symlink_to(home)
    monkeypatch.setenv("HOME", str(home))
    directory = Path(form.format(home=home, name=home.name, link=tmp_path / "link"))
    assert "home directory" in (no_project(directory) or "")
    assert no_project(home / "project") is None


def test_a_diff_has_no_files_of_credentials(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)

    names = ["a.py", ".env", "sub/.env.prod", ".aws/credentials", "sub/Server.PEM"]
    write(tmp_path, *names, text="old\n")
    git("init", "-q")
    git("add", "-Af")
    git("commit", "-qm", "all")
    write(tmp_path, *names, text="s3cr3t\n")
    for directory in (tmp_path, tmp_path / "sub"):
        found = read_revision(directory)
        assert found is not None
        assert found.diff.count(b"s3cr3t") == 1
        assert b"+++ b/a.py" in found.diff


@pytest.mark.parametrize("pattern", FILES)
def test_each_pattern_of_credentials_is_compared_as_a_shell_would(pattern: str) -> None:
    for text in ("", "x", ".x", "-1.json", "_a"):
        name = pattern.replace("*", text)
        assert is_secret(name, is_directory=False) == (name not in EXAMPLES)
        assert is_secret(name.upper(), is_directory=False) == (name not in EXAMPLES)
    assert not is_secret(f"a{pattern.replace('*', 'x')}.py", is_directory=False)
