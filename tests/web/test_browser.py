"""Every view in a real Chromium, light and dark: no error of a script, nothing serious by axe, and the keyboard works.

What HTML alone cannot tell: contrast, the content security policy as a browser understands it, and the script.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.state.series import Point
from fairlead.state.snapshot import Phase, Progress
from fairlead.web.addresses import VIEWS
from tests.web.world import NOW, World

PACKAGES = ("playwright==1.65.2",)
AXE = "axe-core@4.14.1"
INSTALL_TIMEOUT_S, VISIT_TIMEOUT_S = 300.0, 300.0


@pytest.mark.browser
def test_every_view_is_accessible_and_works_with_the_keyboard(world: World) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium here; Debian's package of that name has it")
    python, axe = _environment()
    run = world.run("running", Phase.RUNNING)
    points = tuple(("loss", Point(at=NOW + step, step=step, value=1 / (step + 1))) for step in range(30))
    world.pod(run, output="a line\nanother", points=points, progress=Progress(step=29, total_steps=60, loss=0.03))
    world.run("waits", Phase.PENDING)
    failed = world.run("failed", Phase.FAILED)
    argv = [sys.executable, "-m", "fairlead.cli.main", "ui", "--port", "0", "--json"]
    # Nothing of this was ever started: whoever looked after it would lose the pod and start the run anew.
    with world.cluster.home.lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        environ = {**os.environ, "FAIRLEAD_HOME": str(world.cluster.home.path)}
        with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                base = json.loads(server.stdout.readline())["url"].rstrip("/")
                paths = [*VIEWS, f"/runs/{run.uid}", f"/runs/{failed.uid}", "/?state=Failed", "/cost?by=day"]
                visit = [str(python), str(Path(__file__).with_name("visiting.py")), chromium, str(axe), base, *paths]
                ended = subprocess.run(visit, capture_output=True, text=True, timeout=VISIT_TIMEOUT_S, check=False)
            finally:
                server.terminate()
                server.wait(30)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["grave"] == []
    assert told["errors"] == []
    assert told["opened"].startswith("/runs/")
    assert told["help"] is True


def _environment() -> tuple[Path, Path]:
    """A Python with Playwright, and axe's script; made at first, kept beside this Python's packages.

    Skips the test when they cannot be made, as without a package index.
    """
    home = Path(sys.prefix) / "browser"
    python, axe = home / "bin" / "python", home / "node_modules" / "axe-core" / "axe.min.js"
    uv, npm = Path(sys.executable).parent / "uv", shutil.which("npm")
    if not (home / "complete").exists():
        if not uv.exists() or npm is None:
            pytest.skip("uv beside this Python and npm are needed to make an environment with Playwright and axe")
        shutil.rmtree(home, ignore_errors=True)
        for argv in (
            [str(uv), "--no-config", "venv", "--python", sys.executable, str(home)],
            [str(uv), "--no-config", "pip", "install", "--python", str(python), *PACKAGES],
            [npm, "install", "--prefix", str(home), "--no-audit", "--no-fund", AXE],
        ):
            ended = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
            if ended.returncode != 0:
                pytest.skip(f"{Path(argv[0]).name}: {(ended.stderr.strip().splitlines() or ['failed'])[-1]}")
        (home / "complete").touch()
    return python, axe
