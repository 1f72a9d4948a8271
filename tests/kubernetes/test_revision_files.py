"""What an endpoint's annotation says of the files of its revisions."""

import json
from pathlib import Path

from fairlead.cluster.kubernetes.manifests.revision_files import CODE, code_name, read_files, revised, without_unneeded
from fairlead.cluster.kubernetes.manifests.workdir import REVISION, WORKDIR


def git(commit: str) -> str:
    return json.dumps({"commit": commit, "branch": "main", "dirty": False, "diff": "packed"})


def after(before: dict[str, str], code: str, sent: dict[str, str]) -> dict[str, str]:
    """The annotations of an endpoint once another spec was merged into it."""
    merged = {**before, **revised(read_files(before), code, sent)}
    return {name: value for name, value in merged.items() if value is not None}


def test_the_code_of_a_directory_is_its_files_but_for_specs(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text("one")
    (tmp_path / "serve.yaml").write_text("replicas: 1")
    name = code_name(tmp_path)
    (tmp_path / "serve.yaml").write_text("replicas: 2")
    assert code_name(tmp_path) == name
    (tmp_path / "serve.py").chmod(0o755)
    assert code_name(tmp_path) != name
    (tmp_path / "serve.py").chmod(0o644)
    (tmp_path / "weights.bin").write_bytes(b"1")
    assert code_name(tmp_path) != name


def test_an_endpoint_goes_back_to_the_files_and_the_commit_of_a_code() -> None:
    there = after({}, "one", {WORKDIR: "a-1", REVISION: git("c1")})
    there = after(there, "two", {WORKDIR: "b-1"})
    assert REVISION not in there, "git had no say in the newer files"
    there = after(there, "one", {})
    assert there[WORKDIR] == "a-1"
    assert json.loads(there[REVISION]) == {"commit": "c1", "branch": "main", "dirty": False, "diff": None}
    assert read_files(there).code == "one"


def test_files_from_before_code_had_names_are_those_of_the_revisions_that_have_none() -> None:
    there = after({WORKDIR: "old-1"}, "new", {WORKDIR: "new-1"})
    files = read_files(there)
    assert files.annotations("")[WORKDIR] == "old-1"
    assert files.annotations("new")[WORKDIR] == "new-1"
    assert after(there, "", {})[WORKDIR] == "old-1"


def test_what_no_revision_and_no_replica_has_is_needed_no_more() -> None:
    there: dict[str, str] = {}
    for code, workdir in (("one", "a-1"), ("two", "b-1"), ("two", "c-1"), ("three", "d-1")):
        there = after(there, code, {WORKDIR: workdir})
    needed = without_unneeded(read_files(there), {"two"}, {"a-1"})
    assert [each.workdir for each in needed.sent] == ["a-1", "c-1", "d-1"]


def test_an_annotation_that_somebody_spoilt_is_as_if_it_were_not_there() -> None:
    for spoilt in ("", "{}", '{"code": 1, "sent": [[]]}', "[]"):
        assert read_files({CODE: spoilt, WORKDIR: "a-1"}) == read_files({WORKDIR: "a-1"})
