"""A rank forked from a launcher cannot be told from a fresh interpreter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.launch.pods import Launcher, PodDir

PROBE = Path(__file__).with_name("probe.py")

# What differs between any two runs of one program.
OUT = "PROBE_OUT"


def both(tmp_path: Path, command: str, **changes: Any) -> tuple[PodDir, PodDir]:
    """The pod run by a cold shim, and run again through a launcher."""
    cold = PodDir(tmp_path / "cold").write(command, **changes)
    warm = PodDir(tmp_path / "warm").write(command, **changes)
    for pod in (cold, warm):
        document = pod.read("pod.json")
        document["env"].update({OUT: str(pod.path / "facts.json"), "FAIRLEAD_POD_DIR": "-", "FAIRLEAD_POD_UID": "uid"})
        (pod.path / "pod.json").write_text(json.dumps(document))
    cold.run()
    with Launcher(warm) as launcher:
        launcher.start(warm)
        warm.end()
    assert cold.read("started.json")["launch"] == "exec"
    assert warm.read("started.json")["launch"] == "fork", warm.read("started.json")["why"]
    return cold, warm


@pytest.mark.torch
@pytest.mark.parametrize("command", ["python probe.py a 'b c'", "python -u -W error::FutureWarning -X utf8 ./probe.py"])
def test_a_script_finds_what_it_finds_in_a_fresh_interpreter(tmp_path: Path, command: str) -> None:
    shutil.copy(PROBE, tmp_path)
    cold, warm = both(tmp_path, command, env={"PYTHONHASHSEED": "7"})
    expected, seen = (json.loads((pod.path / "facts.json").read_text()) for pod in (cold, warm))
    assert {key: value for key, value in seen.items() if value != expected[key]} == {}
    assert sorted(warm.lines()) == sorted(cold.lines())


@pytest.mark.torch
def test_a_module_finds_what_it_finds_in_a_fresh_interpreter(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    shutil.copy(PROBE, tmp_path / "package")
    cold, warm = both(tmp_path, "python -m package.probe x")
    expected, seen = (json.loads((pod.path / "facts.json").read_text()) for pod in (cold, warm))
    assert {key: value for key, value in seen.items() if value != expected[key]} == {}


@pytest.mark.long
@pytest.mark.torch
def test_a_program_with_an_optimizer_does_what_it_does_in_a_fresh_interpreter(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys\nimport threading\nimport torch\n\n"
        "torch.manual_seed(1)\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.ones(2, 4)).sum().backward()\n"
        "    optimizer.step()\n"
        "print([p.tolist() for p in model.parameters()], torch.initial_seed(), threading.active_count())\n"
        "print(sorted(name for name in sys.modules if name.startswith('torch.')))\n"
    )
    cold, warm = both(tmp_path, "python train.py")
    assert [stream for _, stream, _ in cold.lines()] == ["o", "o"]
    assert warm.lines() == cold.lines()


@pytest.mark.slow
@pytest.mark.torch
def test_ranks_draw_different_random_numbers_but_the_same_from_torch(tmp_path: Path) -> None:
    (tmp_path / "draw.py").write_text(
        "import numpy\nimport random\nimport torch\n"
        "print(random.random(), numpy.random.rand(), torch.initial_seed(), torch.rand(1).item())\n"
    )
    pod = PodDir(tmp_path / "warm").write("python draw.py", ranks=3)
    with Launcher(pod) as launcher:
        launcher.start(pod)
        pod.end()
    assert pod.read("started.json")["launch"] == "fork"
    columns = list(zip(*(text.split() for _, _, text in pod.lines()), strict=True))
    assert [len(set(column)) for column in columns] == [3, 3, 1, 1]


ENDINGS = {
    "returns": "pass",
    "exits with a number": "sys.exit(3)",
    "exits with a text": "sys.exit('the reason')",
    "exits without": "sys.exit()",
    "raises": "def f():\n    raise ValueError('bad')\ntry:\n    {}['x']\nexcept KeyError:\n    f()",
    "is interrupted": "raise KeyboardInterrupt",
    "interrupts itself": "os.kill(os.getpid(), 2); time.sleep(5)",
    "ends at once": "os._exit(4)",
    "crashes": "os.kill(os.getpid(), 11)",
    "is terminated": "os.kill(os.getpid(), 15)",
    "has its own hook": "sys.excepthook = lambda *a: print('hook', a[0], file=sys.stderr)\n1/0",
    "exits in finally": "try:\n    1/0\nfinally:\n    sys.exit(5)",
    "exits in atexit": "import atexit\natexit.register(print, 'last')\nprint('first')",
    "leaves a thread": "import threading\nthreading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
    "warns its caller": "import warnings\nwarnings.warn('careful', stacklevel=2)",
    "shows its stack": "import traceback\ntraceback.print_stack()",
    "is silent": "sys.stdout.write('no newline'); sys.stderr.write('nor here')",
}


@pytest.mark.slow
@pytest.mark.torch
def test_every_ending_is_that_of_a_fresh_interpreter(tmp_path: Path) -> None:
    script = "import numpy\nimport os, sys, time\n"
    for name, body in ENDINGS.items():
        indented = "".join(f"    {line}\n" for line in body.splitlines())
        script += f"if os.environ['FAIRLEAD_ATTEMPT'] == {name!r}:\n{indented}"
    (tmp_path / "ends.py").write_text(script)
    assert_same_endings(tmp_path, "python ends.py", ENDINGS)


@pytest.mark.torch
def test_a_syntax_error_is_shown_as_by_a_fresh_interpreter(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("import numpy\n")
    first, cold, warm = (pod_of_ending(tmp_path, how, "python ends.py", "x") for how in ("first", "cold", "warm"))
    with Launcher(first) as launcher:
        launcher.start(first)
        assert first.end()["ranks"][0]["exit_code"] == 0
        (tmp_path / "ends.py").write_text("import numpy\nx = = 1\n")
        cold.run()
        launcher.start(warm)
        warm.end()
    assert warm.read("started.json")["launch"] == "fork"
    assert ending(warm) == ending(cold)
    assert warm.lines()[-1] == ("0", "e", "SyntaxError: invalid syntax")


def assert_same_endings(tmp_path: Path, command: str, names: Iterable[str]) -> None:
    """Runs the command once for each name by cold shims, and all again through one launcher."""
    cold = [pod_of_ending(tmp_path, f"cold {name}", command, name) for name in names]
    warm = [pod_of_ending(tmp_path, f"warm {name}", command, name) for name in names]
    expected = {}
    for pod, name in zip(cold, names, strict=True):
        pod.run()
        expected[name] = ending(pod)
    seen = {}
    with Launcher(warm[0]) as launcher:
        for pod, name in zip(warm, names, strict=True):
            launcher.start(pod)
            pod.end()
            assert pod.read("started.json")["launch"] == "fork", pod.read("started.json")["why"]
            seen[name] = ending(pod)
    assert seen == expected


def pod_of_ending(tmp_path: Path, directory: str, command: str, name: str) -> PodDir:
    return PodDir(tmp_path / directory).write(command, env={"FAIRLEAD_ATTEMPT": name})


def ending(pod: PodDir) -> list[Any]:
    (record,) = pod.read("exit.json")["ranks"]
    return [record["exit_code"], record["signal"], record["tail"], sorted(pod.lines())]
