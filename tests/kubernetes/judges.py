"""The two judges of an object: the API server's verdict and ours, each with what it says."""

import json
import re
import urllib.error
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairlead.cluster.kubernetes.kinds import plural
from fairlead.cluster.preflight import pod_place_problem
from fairlead.errors import InvalidSpec
from fairlead.specs.formats.reading import parse
from fairlead.specs.training import Training

Ask = Callable[[str, str, object], Any]
"""Method, path and body of a request; the answer, or HTTPError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether an object is right, and the sentences when it is not.

    Attributes:
        by_rules: The sentences are those of rules; the API server's schema has words of its own.
    """

    accepted: bool
    sentences: tuple[str, ...] = ()
    by_rules: bool = True


def our_verdict(content: dict[str, Any]) -> Verdict:
    """What `fairlead validate` says of the object as a file, and `fairlead run` of where its checkpoints are to be."""
    try:
        (spec,) = parse(json.dumps(content), source="o")
    except InvalidSpec as error:
        return Verdict(accepted=False, sentences=tuple(line.split(": ", 2)[-1] for line in error.problems))
    problem = pod_place_problem(spec) if isinstance(spec, Training) else None
    return Verdict(accepted=True) if problem is None else Verdict(accepted=False, sentences=(problem,))


def server_verdict(ask: Ask, content: dict[str, Any]) -> Verdict:
    """What the API server says of the object, which is not kept; unknown fields are mistakes, as for kubectl."""
    namespace = content["metadata"].get("namespace")
    where = f"namespaces/{namespace}/" if namespace else ""
    path = f"/apis/fairlead.dev/v1alpha1/{where}{plural(content['kind'])}?dryRun=All&fieldValidation=Strict"
    try:
        ask("POST", path, content)
    except urllib.error.HTTPError as error:
        said = json.load(error)
        if error.code not in (400, 422):
            raise
        causes = [each.get("message", "") for each in (said.get("details") or {}).get("causes") or ()]
        sentences = tuple(_VALUE.sub("", each) for each in causes)
        by_rules = bool(sentences) and not any(_OF_SCHEMAS.search(each) for each in causes)
        return Verdict(accepted=False, sentences=sentences or (said["message"],), by_rules=by_rules)
    return Verdict(accepted=True)


def predicate(sentence: str) -> str:
    """What a sentence says of a value, without the value, which each judge prints in its own way, and the advice."""
    return _SUBJECT.sub("", sentence.partition(";")[0], count=1)


# Before a rule's sentence stands the value; before that of a rule on a whole mapping or list only the words.
_VALUE = re.compile(r'^Invalid value: (?:"(?:[^"\\]|\\.)*": |[-+.0-9e]+: )?')
_SUBJECT = re.compile(r'^(?:"(?:[^"\\]|\\.)*"|it\b|[-+.0-9e]+)', re.DOTALL)
_OF_SCHEMAS = re.compile(
    "Required value|Too long|Too many|Duplicate value|must be of type|should |must be|expected |not checked|Unsupported"
)
