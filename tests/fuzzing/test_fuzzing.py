"""Mutated bytes for every reader of bytes from elsewhere: few always, many with ``-m long``, there also by atheris."""

import os
import subprocess
from pathlib import Path
from random import Random

import pytest

from tests.frameworks.environments import interpreter_with
from tests.fuzzing.targets import TARGETS, Target

SECONDS = 60
ROOT = Path(__file__).parents[2]
PIECES = (
    b"\x00", b"\xff\xfe", b"\r\n", b"\n", b"[" * 2_000, b"{" * 50, b"}" * 50, b"]" * 50, b"9" * 400, b"1e999", b"NaN",
    b"-Infinity", b"null", b'"\\ud800"', b"../", b"&a [*a, *a]", b"!!python/object:os.system", b"\x1f\x8b", b"%00",
)  # fmt: skip


def mutated(random: Random, seed: bytes) -> bytes:
    """Return a seed with up to eight changes."""
    data = bytearray(seed)
    for _ in range(random.randint(1, 8)):
        at = random.randrange(len(data) + 1)
        change = random.randrange(5)
        if change == 0 and at < len(data):
            data[at] ^= 1 << random.randrange(8)
        elif change == 1:
            del data[at : at + random.randint(1, 16)]
        elif change == 2:
            data[at:at] = random.choice(PIECES)
        elif change == 3:
            data[at:at] = data[random.randrange(len(data) + 1) :][: random.randint(1, 64)]
        else:
            data[at:at] = random.randbytes(random.randint(1, 8))
    return bytes(data[: 1 << 20])


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("count", [200, pytest.param(20_000, marks=pytest.mark.long)])
def test_no_bytes_make_a_reader_fail(target: Target, count: int) -> None:
    random = Random(int(os.environ.get("FAIRLEAD_FUZZ_SEED", "7")) + count)
    for seed in target.seeds:
        target.read(seed)
    for _ in range(count):
        target.read(mutated(random, random.choice(target.seeds)))


@pytest.mark.long
@pytest.mark.parametrize("name", TARGETS)
def test_atheris_finds_no_bytes_that_make_a_reader_fail(name: str, tmp_path: Path) -> None:
    python = interpreter_with("atheris")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(TARGETS[name].seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    ended = subprocess.run(
        [python, "-m", "tests.fuzzing.fuzz", name, str(corpus), f"-max_total_time={SECONDS}", "-max_len=8192"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS * 5,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    assert "Done" in ended.stderr, ended.stderr[-2000:]
