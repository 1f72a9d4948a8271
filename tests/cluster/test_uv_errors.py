"""One sentence for each failure of uv, of texts that uv 0.13 has printed."""

import pytest

from fairlead.cluster.local.packages.uv_errors import explain, last_progress

NO_SOLUTION = "error: No solution found when resolving dependencies\n  cause: "
END = ", we can conclude that your requirements are unsatisfiable.\n"
CASES = {
    "unknown": (
        f"{NO_SOLUTION}Because nump was not found in the package registry and you require nump{END}",
        "no index has a package nump",
    ),
    "unknown here": (
        f"{NO_SOLUTION}Because fl-three was not found in the provided package locations and you require fl-three{END}",
        "no index has a package fl-three",
    ),
    "no such version": (
        f"{NO_SOLUTION}Because there is no version of numpy==1.0 and you require numpy==1.0{END}",
        "there is no version of numpy that fits ==1.0",
    ),
    "too new": (
        f"{NO_SOLUTION}Because only numpy<=2.5.5 is available and you require numpy>=99{END}",
        "there is no version of numpy that fits >=99",
    ),
    "conflict": (
        f"{NO_SOLUTION}Because you require idna==3.7 and idna<2{END}",
        "the packages exclude each other: you require idna==3.7 and idna<2",
    ),
    "conflict of dependencies": (
        f"{NO_SOLUTION}Because fastapi==0.110.0 depends on one of:\n     pydantic>=1.7.4,<1.8\n"
        "     pydantic>1.8,<1.8.1\n     pydantic>2.1.0,<3.0.0\n and you require fastapi==0.110.0, we can conclude that "
        "you require one of:\n"
        "     pydantic>=1.7.4,<1.8\n     pydantic>2.1.0,<3.0.0\n\n And because you require pydantic<1.7"
        f"{END}",
        "the packages exclude each other: fastapi==0.110.0 depends on pydantic>=1.7.4,<1.8 to pydantic>2.1.0,<3.0.0 "
        "and you require fastapi==0.110.0, and you require pydantic<1.7",
    ),
    "source alone": (
        f"{NO_SOLUTION}Because all versions of langdetect have no usable wheels and you require langdetect{END}\nhint: "
        "Wheels are required for `langdetect` because building from source is disabled for all packages",
        "langdetect has no wheel for this machine and this Python",
    ),
    "other Pythons alone": (
        f"{NO_SOLUTION}Because tensorflow==2.3.0 has no wheels with a matching Python ABI tag (e.g., `cp311`) and you "
        f"require tensorflow==2.3.0{END}",
        "tensorflow==2.3.0 has no wheel for this machine and this Python",
    ),
    "source alone in a lock": (
        "error: Package `langdetect` can't be installed because it is marked as `--no-build` but has no binary "
        "distribution\n",
        "langdetect has no wheel for this machine and this Python",
    ),
    "Python": (
        f"{NO_SOLUTION}Because the current Python version (3.10.13) does not satisfy Python>=3.11 and ipython==9.6.0 "
        "depends on Python>=3.11, we can conclude that ipython==9.6.0 cannot be used.\n And because you require "
        f"ipython==9.6.0{END}",
        "ipython==9.6.0 needs Python >=3.11, and the environment has 3.10.13",
    ),
    "Python of a lock": (
        "error: The requested interpreter resolved to Python 3.11.7, which is incompatible with the `pylock.toml`'s "
        "Python requirement: `>=3.13`\n",
        "pylock.toml needs Python >=3.13, and the environment has 3.11.7",
    ),
    "login": (
        f"{NO_SOLUTION}Because six was not found in the package registry and you require six{END}\nhint: An index URL "
        "(http://127.0.0.1:8377/simple) could not be queried due to a lack of valid authentication credentials (401 "
        "Unauthorized)\n",
        "the index http://127.0.0.1:8377/simple refuses to answer without a valid login",
    ),
    "no network": (
        "error: Request failed after 3 retries in 7.0s\n  cause: Failed to fetch: http://127.0.0.1:9/simple/six/\n"
        "  cause: error sending request for url (http://127.0.0.1:9/simple/six/)\n  cause: client error (Connect)\n",
        "http://127.0.0.1:9/simple/six/ cannot be reached",
    ),
    "no room": (
        "error: Failed to install: numpy-2.4.6-cp311.whl (numpy==2.4.6)\n  cause: Failed to copy to `/a/b.so`\n"
        "  cause: failed to copy file from /c/b.so to /a/b.so: No space left on device (os error 28)\n",
        "there is no room on the disk for its packages",
    ),
    "another file": (
        "error: Failed to download `six==1.17.0`\n  cause: Hash mismatch for `six==1.17.0`\n\n Expected:\n"
        "   sha256:00000000ed9\n\n Computed:\n   sha256:4721f391ed9\n",
        "a file of six==1.17.0 has another hash than its lock",
    ),
    "a typo": (
        "error: Couldn't parse requirement in `requirements.txt` at position 0\n  cause: no such comparison operator "
        '"=>", must be one of ~= == != <= >= < > ===\n  numpy=>1\n       ^^^\n',
        'a requirement is not valid: no such comparison operator "=>", must be one of ~= == != <= >= < > === numpy=>1',
    ),
    "anything else": ("error: the sky has fallen\n", "uv failed: error: the sky has fallen"),
}


@pytest.mark.parametrize(("text", "sentence"), CASES.values(), ids=CASES)
def test_a_failure_is_one_sentence_that_names_the_package(text: str, sentence: str) -> None:
    assert explain(text).message == sentence


def test_a_login_in_a_url_is_not_repeated() -> None:
    text = "error: Failed to fetch: https://me:secret@index.example/simple/six/\n  cause: error sending request"
    assert explain(text).message == "https://index.example/simple/six/ cannot be reached"


def test_a_long_text_is_cut() -> None:
    assert len(explain("error: " + "word " * 10_000).message) < 700


def test_progress_is_the_last_line_that_tells_of_packages() -> None:
    lines = ["Using Python 3.11.7\n", "Resolved 2 packages in 12ms\n", "warning: slow\n"]
    assert last_progress(lines) == "Resolved 2 packages in 12ms"
    assert last_progress(lines[:1]) is None
