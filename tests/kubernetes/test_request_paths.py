"""Names in the paths of requests: one that no object can have leads nowhere, at every place that builds a path."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairlead
from fairlead.cluster.kubernetes.api.client import ApiError, check_path
from fairlead.cluster.kubernetes.names import segment

SOURCE = Path(fairlead.__file__).parent
FOLDERS = ("cluster/kubernetes", "control", "web", "cli")
HOSTILE = (
    "a/status", "a/log", "a/../b", "..", ".", "", "a%2fstatus", "%2e%2e", "%2F", "a?watch=true", "a#b", "a b", "a\nb",
    "a\x00", "\\..\\b", "a;b", "\u00e9", "\ud800", "a//b", "/", "../../secrets", "a/proxy/x", "x" * 254 + "/status",
)  # fmt: skip
ALLOWED = ("a", "a.b", "a..b", "a-b.c", "x" * 253, "system:auth-delegator", "0")
STRUCTURE = frozenset({"api", "plural", "place", "where", "root", "path", "group", "version", "resource"})
"""Last words of what a path has beside names: APIs, plurals of kinds, and paths that are built by another place."""


def is_structure(value: ast.expr) -> bool:
    """Return whether a part of a path is a constant, or none of the names in it."""
    text = ast.unparse(value)
    word = text.rpartition(".")[2].lstrip("_")
    return word in STRUCTURE or word.isupper() or text.startswith(("plural(", "objects_path(", "_path("))


def paths() -> Iterator[tuple[str, ast.JoinedStr]]:
    """Yield every text with gaps that is a path of a request, or a part of one, with its place in the tree."""
    for folder in FOLDERS:
        for file in sorted((SOURCE / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr) and is_path(node):
                    yield f"{file.relative_to(SOURCE)}:{node.lineno}", node


def is_path(node: ast.JoinedStr) -> bool:
    constants = [str(value.value) for value in node.values if isinstance(value, ast.Constant)]
    if any(
        text.startswith(("/api/v1", "/apis/")) or text.endswith(("/namespaces/", "namespaces/")) for text in constants
    ):
        return True
    first, *rest = node.values
    begins = isinstance(first, ast.FormattedValue) and is_structure(first.value)
    return begins and any(isinstance(value, ast.FormattedValue) and calls_segment(value.value) for value in rest)


def calls_segment(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) in ("segment", "names.segment")


PATHS = dict(paths())


def test_the_places_are_found() -> None:
    assert len(PATHS) > 70


@pytest.mark.parametrize("place", PATHS)
def test_each_name_in_a_path_is_quoted(place: str) -> None:
    before = ""
    for value in PATHS[place].values:
        if isinstance(value, ast.Constant):
            before = str(value.value)
        elif isinstance(value, ast.FormattedValue) and before.endswith("/"):
            is_safe = is_structure(value.value) or calls_segment(value.value)
            assert is_safe, f"`{ast.unparse(value.value)}` is to be `segment({ast.unparse(value.value)})`"


def filled(node: ast.JoinedStr, name: str) -> str:
    """Return the path with a name in each gap for names."""
    parts = []
    for value in node.values:
        if isinstance(value, ast.Constant):
            parts.append(str(value.value))
        elif isinstance(value, ast.FormattedValue):
            word = ast.unparse(value.value).rpartition(".")[2]
            parts.append(segment(name) if calls_segment(value.value) else "" if word == "where" else "x")
    text = "".join(parts)
    if text.startswith(("/api/", "/apis/")):
        return text
    return f"/api/v1/{text.lstrip('/')}"


@pytest.mark.parametrize("place", [place for place, node in PATHS.items() if "segment(" in ast.unparse(node)])
def test_a_name_that_no_object_can_have_leads_nowhere(place: str) -> None:
    has_port = any(
        isinstance(value, ast.Constant) and str(value.value).startswith(":") for value in PATHS[place].values
    )
    for name in HOSTILE:
        if has_port and not name.strip("."):
            continue  # with a port behind it neither nothing nor dots lead elsewhere
        with pytest.raises(ApiError) as refusal:
            check_path("GET", filled(PATHS[place], name))
        assert refusal.value.status == 404, name


@pytest.mark.parametrize("name", ALLOWED)
def test_a_name_that_an_object_may_have_stays_as_it_is(name: str) -> None:
    path = f"/apis/fairlead.dev/v1alpha1/namespaces/n/trainings/{segment(name)}/status"
    check_path("PATCH", path)
    assert name in path
