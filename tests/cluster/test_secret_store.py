"""Secrets of this machine: one version or the other after a kill, and clear words about what a run cannot get."""

import os
from pathlib import Path

import pytest

from fairlead.cluster.local.secret_store import SecretStore, secret_problem
from fairlead.errors import ClusterError
from fairlead.specs.data import DataSource
from fairlead.specs.secret_reference import parse_secret
from tests.builders import training


def test_a_kill_leaves_the_old_version_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SecretStore(tmp_path / "secrets")
    store.write("hf", {"A": b"old"})
    calls = ("fsync", "mkdir", "symlink", "replace")
    for call in calls:

        def killed(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(os, call, killed)
            with pytest.raises(KeyboardInterrupt):
                store.write("hf", {"A": b"new", "B": b"new"})
        assert (store.path("hf") / "A").read_bytes() == b"old", call
    store.write("hf", {"A": b"new"})
    assert (store.path("hf") / "A").read_bytes() == b"new"
    assert len(os.listdir(tmp_path / "secrets")) == 3, "what kills left is removed"


def test_a_directory_that_others_can_enter_takes_no_secret(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir(mode=0o755)
    (tmp_path / "secrets").chmod(0o755)
    with pytest.raises(ClusterError):
        SecretStore(tmp_path / "secrets").write("hf", {"A": b"1"})
    assert os.listdir(tmp_path / "secrets") == []


@pytest.mark.parametrize(
    ("secrets", "env", "sentence"),
    [
        (("absent",), {}, "there is no secret `absent` on this machine; there are cert, hf, other"),
        (("KEY=cert/absent",), {}, 'the secret `cert` has no entry "absent"; it has key.pem'),
        (("cert",), {}, "`key.pem` of the secret `cert` is no name of a variable; take it as a file"),
        (("hf", "other"), {}, "the secrets `hf` and `other` both set the variable TOKEN"),
        (("hf",), {"TOKEN": "x"}, "TOKEN is an entry of a secret and in `env` too; remove one of them"),
        (("hf", "TOKEN=cert/key.pem"), {}, "TOKEN is an entry of a secret and in `secrets` as a file too"),
        (("hf", "KEY=cert/key.pem", "ALL=cert"), {"A": "b"}, None),
    ],
)
def test_what_a_run_cannot_get_is_said(
    tmp_path: Path, secrets: tuple[str, ...], env: dict[str, str], sentence: str | None
) -> None:
    store = SecretStore(tmp_path)
    tmp_path.chmod(0o700)
    store.write("hf", {"TOKEN": b"v4lue"})
    store.write("other", {"TOKEN": b"v4lue"})
    store.write("cert", {"key.pem": b"v4lue"})
    said = secret_problem(tmp_path, training(secrets=tuple(map(parse_secret, secrets)), env=env))
    assert said is None if sentence is None else said is not None and f"secrets: {sentence}".partition(": ")[2] in said
    assert "v4lue" not in str(said)


def test_an_entry_that_is_one_of_fairleads_variables_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    SecretStore(tmp_path).write("hf", {"MASTER_ADDR": b"1"})
    said = secret_problem(tmp_path, training(secrets=(parse_secret("hf"),)))
    assert said == "secrets: MASTER_ADDR, an entry of a secret, is set by Fairlead itself; choose another name"


def test_credentials_of_data_that_are_missing_are_said(tmp_path: Path) -> None:
    source = DataSource(origin="s3://bucket/a", credentials="reader")
    said = secret_problem(tmp_path, training(data={"train": source}))
    assert said is not None
    assert said.startswith("data.train.credentials: there is no secret `reader` on this machine; `fairlead secrets set")
