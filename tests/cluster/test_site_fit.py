"""The plan of an endpoint says of each site whether a replica fits its device."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.cli.main import group
from fairlead.control.model_publishing import publish
from fairlead.control.site_fit import fit_sites
from fairlead.runtime.serving.published_model import architecture
from fairlead.specs.resources import Resources
from fairlead.specs.serving import Serving
from fairlead.specs.serving_sites import ServingSite
from tests.home import end_everything
from tests.serving.test_published_model import make_key


@pytest.fixture
def sites(tmp_path: Path) -> dict[str, ServingSite]:
    (tmp_path / "near").mkdir(mode=0o700)
    near = ServingSite(home=str(tmp_path / "near"))
    return {"near": near, "far": ServingSite(home=str(tmp_path / "absent"))}


def endpoint(sites: dict[str, ServingSite], workdir: Path, **more: object) -> Serving:
    fields = {"name": "hello", "run": f"{sys.executable} -c pass", "workdir": str(workdir), "sites": sites, **more}
    return Serving(**fields)  # type: ignore[arg-type]


def test_a_site_that_has_room_fits_and_one_that_does_not_answer_is_unknown(
    sites: dict[str, ServingSite], tmp_path: Path
) -> None:
    near, far = fit_sites(endpoint(sites, tmp_path))
    assert (near.site, near.fits, near.why) == ("near", True, "")
    assert near.device.startswith(f"1 node, {architecture()}, up to ")
    assert (far.site, far.fits, far.why) == (
        "far",
        None,
        f"it does not answer: there is no directory {tmp_path}/absent",
    )


def test_too_little_memory_and_a_program_that_is_not_there_do_not_fit(
    sites: dict[str, ServingSite], tmp_path: Path
) -> None:
    (near, _) = fit_sites(endpoint(sites, tmp_path, resources=Resources(memory_bytes=1 << 50)))
    assert near.fits is False
    assert "needs" in near.why
    (near, _) = fit_sites(endpoint(sites, tmp_path, run="no-such-program-here"))
    assert near.fits is False
    assert "no-such-program-here" in near.why


def test_a_model_for_another_cpu_larger_than_memory_or_unsigned_does_not_fit(
    sites: dict[str, ServingSite], tmp_path: Path
) -> None:
    key = make_key(tmp_path / "key")
    (tmp_path / "net.bin").write_bytes(bytes(1 << 20))
    other = "arm64" if architecture() == "amd64" else "amd64"
    foreign = publish(tmp_path / "net.bin", "net-1", tmp_path / "public", key, architectures=(other,))
    own = publish(tmp_path / "net.bin", "net-2", tmp_path / "public", key)
    model = {"signed_by": foreign.signer}
    (near, _) = fit_sites(endpoint(sites, tmp_path, model=str(foreign.index), **model))
    assert (near.fits, near.why) == (False, f"the model is for {other}, and its nodes have {architecture()}")
    small = Resources(memory_bytes=1 << 19)
    (near, _) = fit_sites(endpoint(sites, tmp_path, model=str(own.index), resources=small, **model))
    assert near.why.startswith("the model has 1 MiB, and a replica gets 512 KiB") or near.why.startswith(
        "the model has"
    )
    stranger = make_key(tmp_path / "stranger").with_suffix(".pub").read_text().strip()
    fits = fit_sites(endpoint(sites, tmp_path, model=str(own.index), signed_by=stranger))
    assert [fit.fits for fit in fits] == [False, False]
    assert "not that of the key `signed_by`" in fits[0].why


def test_plan_shows_the_sites(sites: dict[str, ServingSite], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_HOME", str(tmp_path / "home"))
    text = f"kind: Serving\nname: hello\nrun: {sys.executable} -c pass\nsites:\n  near: {{home: {tmp_path}/near}}\n"
    (tmp_path / "hello.yaml").write_text(f"{text}  far: {{home: {tmp_path}/absent}}\n")
    try:
        answer = CliRunner().invoke(group, ["plan", str(tmp_path / "hello.yaml")], catch_exceptions=False)
    finally:
        end_everything(tmp_path / "home")
    lines = [line.split()[:2] for line in answer.output.splitlines()]
    assert ["near", "yes"] in lines, answer.output
    assert ["far", "unknown"] in lines, answer.output
