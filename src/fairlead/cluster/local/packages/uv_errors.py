"""Explains what uv prints when it fails: one sentence that names the package and the cause, and how to fix it."""

import re
from collections.abc import Callable, Iterable

from fairlead.frozen import dataclass

MOST_CHARACTERS = 600
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_FRAME = re.compile("[\u2500-\u257f\u25b6\xd7]+")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_URL_LOGIN = re.compile(r"(://)[^/@\s]+@")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFailure:
    """The reason for which an environment could not be made.

    Attributes:
        message: One sentence without a full stop.
        remedy: How to fix it; None where nothing is known.
    """

    message: str
    remedy: str | None = None


def explain(output: str) -> BuildFailure:
    """Return the cause of a failure of uv, from what it wrote to stderr."""
    plain = _URL_LOGIN.sub(r"\1", _COLOURS.sub("", output))
    text = " ".join(_FRAME.sub(" ", plain).split())
    for pattern, say in _CAUSES:
        match = pattern.search(text)
        if match is not None:
            return say(match)
    return BuildFailure(message=f"uv failed: {_short(text)}")


def _no_room(_: re.Match[str]) -> BuildFailure:
    return BuildFailure(
        message="there is no room on the disk for its packages",
        remedy="`fairlead prune --environments` removes those that no run needs, and `uv cache prune` old packages.",
    )


def _login(match: re.Match[str]) -> BuildFailure:
    return BuildFailure(
        message=f"the index {match['url']} refuses to answer without a valid login",
        remedy="Give one in UV_INDEX_<NAME>_USERNAME and _PASSWORD, in ~/.netrc or by `uv auth login`; then submit it "
        "again.",
    )


def _unreachable(match: re.Match[str]) -> BuildFailure:
    return BuildFailure(
        message=f"{match['url'].strip('`')} cannot be reached",
        remedy="Check the network, the proxy variables and UV_DEFAULT_INDEX; then submit it again.",
    )


def _gone(match: re.Match[str]) -> BuildFailure:
    return BuildFailure(
        message=f"the file {match['url']} of the lock is not there", remedy="Lock again, for the files of today."
    )


def _unknown(match: re.Match[str]) -> BuildFailure:
    return BuildFailure(
        message=f"no index has a package {match['name']}",
        remedy="Correct its name, or name its index in UV_INDEX.",
    )


def _no_wheel(match: re.Match[str]) -> BuildFailure:
    return BuildFailure(
        message=f"{match['name']} has no wheel for this machine and this Python",
        remedy="Take a version that has one, or another `python`. Nothing is compiled here: a wheel that you made with "
        "`pip wheel` is taken from the directory that a line `--find-links DIR` names.",
    )


def _no_version(match: re.Match[str]) -> BuildFailure:
    return BuildFailure(message=f"there is no version of {match['name']} that fits {match['wanted']}")


def _needs_python(match: re.Match[str]) -> BuildFailure:
    return BuildFailure(
        message=f"{match['name']} needs Python {match['needs']}, and the environment has {match['has']}",
        remedy="Give `environment` another `python`, or take another version.",
    )


def _conflict(match: re.Match[str]) -> BuildFailure:
    return BuildFailure(
        message=f"the packages exclude each other: {_reasoning(match['why'])}", remedy="Loosen one of these bounds."
    )


def _bad_line(match: re.Match[str]) -> BuildFailure:
    return BuildFailure(message=f"a requirement is not valid: {_short(match['why'])}")


def _changed(match: re.Match[str]) -> BuildFailure:
    return BuildFailure(
        message=f"a file of {match['name']} has another hash than its lock",
        remedy="The index or a proxy now serves another file than it did: learn the reason, then lock again.",
    )


_CAUSES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], BuildFailure]], ...] = tuple(
    (re.compile(pattern), say)
    for pattern, say in (
        (r"No space left on device|os error 28\b|Disk quota exceeded", _no_room),
        (r"URL \((?P<url>\S+)\) could not be queried due to a lack of valid authentication", _login),
        (r"(?:401 Unauthorized|403 Forbidden)\S* for url \((?P<url>[^)]+)\)", _login),
        (r"Hash mismatch for `(?P<name>[^`]+)`", _changed),
        (r"404 Not Found\)? for url \((?P<url>[^)]+)\)", _gone),
        (r"(?:Failed to (?:fetch|download)|sending request)[^:(]*(?:: | for url \()(?P<url>`?https?://[^\s)]+)",
         _unreachable),
        (rf"\b(?P<name>{_NAME}) was not found in the ", _unknown),
        (rf"(?:all versions of )?\b(?P<name>{_NAME}(?:==\S+)?) ha(?:s|ve) no (?:usable )?wheels", _no_wheel),
        (r"Package `(?P<name>[^`]+)` can't be installed because it is marked as `--no-build`", _no_wheel),
        (rf"Because the current Python version \((?P<has>[\d.]+)\) does not satisfy Python(?P<needs>\S+) and "
         rf"(?P<name>{_NAME}\S*) depends", _needs_python),
        (r"resolved to Python (?P<has>[\d.]+), which is incompatible with the `(?P<name>pylock.toml)`'s Python "
         r"requirement: `(?P<needs>[^`]+)`", _needs_python),
        (rf"Because there (?:is|are) no versions? of (?P<name>{_NAME})(?P<wanted>[=<>!~]\S*) and you require",
         _no_version),
        (rf"Because only (?P<name>{_NAME})[=<>!~]\S* (?:is|are) available and you require {_NAME}(?P<wanted>\S+?),? we "
         "can conclude that your requirements", _no_version),
        (r"Couldn't parse requirement (?:in `[^`]*` at position \d+ cause: )?(?P<why>.*)", _bad_line),
        (r"Because (?P<why>.*), we can conclude that your requirements are unsatisfiable", _conflict),
    )
)  # fmt: skip


def _reasoning(text: str) -> str:
    """Return the premises of a proof of uv without its conclusions, and of a list of versions its ends."""
    text = re.sub(r", we can conclude that .*? And because ", ", and ", text)
    return _short(re.sub(r"one of: (\S+) (?:\S+[<>=]\S* )*(\S+[<>=]\S*)", r"\1 to \2", text))


def _short(text: str) -> str:
    text = text.partition(" hint: ")[0].strip().rstrip(".^ ")
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 3].rsplit(' ', 1)[0]} ..."


def last_progress(lines: Iterable[str]) -> str | None:
    """Return what uv is doing, by the lines that it has written; None before the first of them."""
    done = None
    for line in lines:
        words = _COLOURS.sub("", line).strip()
        if re.match(r"(Resolved|Prepared|Installed|Downloading|Downloaded|Building|Built|Updating|Updated) ", words):
            done = words
    return done
