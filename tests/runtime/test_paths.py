import ast
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fairlead
from fairlead.runtime.paths import UnsafeName, below

ODD = ["", ".", "..", "/", "/etc/passwd", "../x", "a/../../x", "a/..", "./..", "//x", "a\0b", "x" * 256, "a/" * 3000,
       "\ud800", "C:\\x", "..\\x", "~/x", "a//b", "./a", "\u202e.py", "a\nb", " ", "\u2025/x"]  # fmt: skip


@given(st.text() | st.lists(st.sampled_from(["..", ".", "a", "", "b\0", "\udcff", "é"])).map("/".join))
def test_a_name_is_strictly_below_the_directory_or_refused(name: str) -> None:
    root = Path("/srv/data")
    try:
        path = below(root, name)
    except UnsafeName as error:
        message = str(error)
    else:
        assert path.is_relative_to(root)
        assert path != root
        assert ".." not in path.parts
        return
    assert len(message) < 250
    assert message.isprintable()


for _name in ODD:
    test_a_name_is_strictly_below_the_directory_or_refused = example(_name)(
        test_a_name_is_strictly_below_the_directory_or_refused
    )


@pytest.mark.parametrize("name", ["/etc/passwd", "..", "a/../../x", "", ".", "a\0b", "\ud800", "x" * 256, "a/" * 3000])
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(UnsafeName):
        below("/srv", "a", name)


@pytest.mark.parametrize("name", [None, 3, ["a"], b"a"])
def test_a_value_of_another_type_is_refused(name: object) -> None:
    with pytest.raises(UnsafeName, match="is not a name"):
        below("/srv", name)  # type: ignore[arg-type] # as a manifest or a peer may send it


def test_every_part_is_checked_by_itself() -> None:
    assert below("/srv", "a", "b/c") == Path("/srv/a/b/c")
    with pytest.raises(UnsafeName):
        below("/srv", "a", "../b")


SOURCE = Path(fairlead.__file__).parent
READERS = re.compile(
    r"tarfile|zipfile|open_place|Manifest\b|import .*\breceive\b|KeptCode|read_files|is_digest|archive_of|Documents"
)
"""Marks of a module that meets names from elsewhere: archives, object stores, manifests, peers, code of others."""
OWN_CALLS = ("step_name", "rank_directory", "draft_name", "os.urandom")
OWN = {
    "cluster/kubernetes/client/workdir_stores.py": {
        "PurePosixPath(self.path) / FOLDER / folder",  # a path in a pod, of a name that the command line checked
        "PurePosixPath(self.path) / FOLDER / folder / (archive.digest + ENDING)",
    },
    "cluster/kubernetes/manifests/runtime_bundle.py": {"root / name"},  # modules of this package
    "cluster/kubernetes/manifests/workdir.py": {"directory / entry.path"},  # files that were just listed here
    "cluster/local/cluster.py": {  # the user's own spec and directories
        "base / Path(spec.home.path).expanduser()",
        "base / Path(spec.workdir).expanduser()",
        "directory / Path(environment.file).expanduser()",
        "os.path.join(directory, file)",
        "workdir / Path(origin).expanduser()",
    },
    "cluster/local/code/keeping.py": {
        "self._path / 'index' / hashlib.sha256(os.fsencode(workdir)).hexdigest()[:32]",
        "self._path / 'written' / f'{name}.json'",  # a hash, too
        "self.tree / inside",  # one of the stored paths
        "workdir / path",  # likewise
        "Path(workdir, file.path)",  # likewise
    },
    "cluster/local/packages/requests.py": {  # the user's own spec and files, and hashes
        "directory / f'{key_of(spec.environment, spec.workdir)}.json'",
        "directory / links[2]",
        "directory / name",
        "home.packages / 'pythons' / f'{key}.json'",
        "home.packages_of(parent) / name",
        "home.packages_of(uid) / f'{key_of(spec.environment, spec.workdir)}.json'",
        "workdir / Path(environment.file).expanduser()",
        "workdir / name",
    },
    "control/data.py": {"base / path"},  # the user's own spec
    "control/data_forecast.py": {
        "compute_s / epoch_s",
        "from_store / self.store_rate",
        "self.missing_bytes / self.store_rate",
        "self.num_bytes / self.run_rate",
        "size / (end - begin)",
    },  # numbers
    "control/image/base_images.py": {"directory / digest.replace(':', '-')"},  # checked by is_digest
    "control/image/environments.py": {  # the user's own spec
        "(directory or Path.cwd()).absolute() / Path(spec.workdir or '.').expanduser()"
    },
    "control/image/layers.py": {"directory / f'{digest}.tar.gz'"},  # computed there
    "control/image/wheel_layers.py": {"PurePosixPath(PREFIX, folder)"},  # one of its own folders
    "control/pipelines/drift.py": {
        "base / Path(data.removeprefix('file://')).expanduser()",  # the user's own spec
        "request.significance / len(tested)",
    },
    "runtime/archives.py": {"os.path.join(directory, name)", "os.path.join(parts, name)"},  # names just listed there
    "runtime/checkpoint/directory.py": {
        "self._draft(draft) / f'.rank-{rank:05d}'",
        "self._root / f'{PARTIAL}{entry.name}-outdated'",
        "self._root / f'{PARTIAL}{goal.name}-replaced-by-{draft.tag}'",
        "self._root / f'{PARTIAL}{step_name(draft.step)}-{draft.tag}'",
        "self._root / match[0]",
    },
    "runtime/checkpoint/memory.py": {
        "place / f'node-{node:05d}'",
        "self._root / f'{PARTIAL}load-{step}-{secrets.token_hex(4)}'",
    },
    "runtime/checkpoint/tensors.py": {"directory / folder", "directory / self._folder(place)"},  # of two constants
    "runtime/checkpoint/weights.py": {"directory / folder"},
    "runtime/network/measuring.py": {"1.0 / gb_s", "num_bytes / seconds"},  # numbers
    "runtime/serving/model_files.py": {"download_dir / os.path.basename(root)"},  # checked by below when it was written
    "runtime/step_files.py": {"directory / name"},  # inputs, outputs
    "runtime/trial.py": {"os.path.join(path, f'.fairlead-trial-{os.urandom(8).hex()}')"},
}
"""Joins in such modules of names that this project made or the user of this machine gave."""


def _joins(source: str) -> set[str]:
    """Return the joins of a path with something that is neither a constant nor made by this project's own functions."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and not _is_own(node.right):
            found.add(ast.unparse(node))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.path.join", "Path", "PurePosixPath"):
            found |= {ast.unparse(node)} if not all(map(_is_own, node.args[1:])) else set()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "joinpath":
            found.add(ast.unparse(node))
    return found


def _is_own(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in OWN_CALLS
    if isinstance(node, ast.Name | ast.Attribute):
        return ast.unparse(node).rpartition(".")[2].isupper()
    return isinstance(node, ast.Constant)


def test_names_from_elsewhere_are_joined_by_below_alone() -> None:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        module, text = path.relative_to(SOURCE).as_posix(), path.read_text()
        if READERS.search(text) and not module.startswith("policy/") and (joins := _joins(text)):
            found[module] = joins
    assert found == OWN


def test_archives_are_unpacked_in_one_place() -> None:
    unpacking = re.compile(r"extractall|\.extract\(|extractfile|unpack_archive")
    assert [
        path.relative_to(SOURCE).as_posix()
        for path in sorted(SOURCE.rglob("*.py"))
        if unpacking.search(path.read_text())
    ] == ["runtime/extraction.py"]
