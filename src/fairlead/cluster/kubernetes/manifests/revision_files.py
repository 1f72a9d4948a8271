"""Records in an annotation the files of each revision of an endpoint, so that a new replica gets its own. Pure.

The code of a revision is named by a hash of the uploaded files without specs. Files uploaded again under the same name,
for example after a spec beside the program was edited, replace the earlier ones.

See decision 96.
"""

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.manifests.workdir import REVISION, WORKDIR, files
from fairlead.frozen import dataclass
from fairlead.untrusted_json import items, parse_object, text

CODE = f"{names.DOMAIN}/code"  # annotation of a Serving: JSON of RevisionFiles
MOST_BYTES = 256 << 10  # all annotations of an object together have no more
NAME_CHARACTERS = 16
SPECS = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class SentFiles:
    """Files of one upload.

    Attributes:
        code: The name of their code; empty for uploads from before code had names.
        workdir: The annotation of a working directory.
        commit: Their git commit in the form of a revision's annotation, without the diff; None without git.
    """

    code: str
    workdir: str
    commit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionFiles:
    """The files of an endpoint's revisions, as listed in its annotations.

    Attributes:
        code: The name of the code that its spec describes.
        sent: All kept uploads, the latest last.
    """

    code: str = ""
    sent: tuple[SentFiles, ...] = ()

    def of(self, code: str) -> SentFiles | None:
        """Return the files of a code; None if none are kept."""
        return next((files_ for files_ in reversed(self.sent) if files_.code == code), None)

    def annotations(self, code: str) -> dict[str, str | None]:
        """Return the annotations that give a workload the files of a code, without the list."""
        sent = self.of(code)
        return {} if sent is None else {WORKDIR: sent.workdir, REVISION: sent.commit}

    def listed(self) -> str:
        """Return the list as it is stored."""
        sent = [[files_.code, files_.workdir, files_.commit] for files_ in self.sent]
        return json.dumps({"code": self.code, "sent": sent}, separators=(",", ":"))


def code_name(directory: Path) -> str:
    """Return the name of the code in a directory, which depends on all files except specs."""
    digests = [
        (path.relative_to(directory).as_posix(), _digest(path), os.access(path, os.X_OK))
        for path in files(directory)
        if path.suffix not in SPECS
    ]
    return hashlib.sha256(repr(sorted(digests)).encode()).hexdigest()[:NAME_CHARACTERS]


def read_files(annotations: Mapping[str, str]) -> RevisionFiles:
    """Parse annotations; files from before code had names belong to the empty name."""
    try:
        listed = parse_object(annotations[CODE], max_bytes=MOST_BYTES)
        sent = tuple(_read_sent(item) for item in items(listed["sent"]))
        return RevisionFiles(code=str(listed["code"]), sent=sent)
    except (KeyError, ValueError):
        # There is none, or it was not written by Fairlead.
        workdir = annotations.get(WORKDIR)
        return RevisionFiles() if not workdir else RevisionFiles(sent=(_sent("", workdir, annotations.get(REVISION)),))


def _read_sent(value: object) -> SentFiles:
    parts = items(value)
    if len(parts) != 3 or not isinstance(parts[0], str) or not isinstance(parts[1], str):
        raise ValueError("no files of an upload")
    return SentFiles(code=parts[0], workdir=parts[1], commit=text(parts[2], MOST_BYTES))


def revised(before: RevisionFiles, code: str, annotations: Mapping[str, str]) -> dict[str, str | None]:
    """Return the annotations of an endpoint that changes to a code.

    Args:
        annotations: Annotations of the files uploaded now; without any the endpoint uses files that are kept.
    """
    if WORKDIR in annotations:
        new = _sent(code, annotations[WORKDIR], annotations.get(REVISION))
        after = RevisionFiles(code=code, sent=(*(files_ for files_ in before.sent if files_ != new), new))
        return {REVISION: None, **annotations, CODE: after.listed()}
    if not before.sent:
        return {}
    return {**before.annotations(code), CODE: replace(before, code=code).listed()}


def without_unneeded(files_: RevisionFiles, codes: Collection[str], workdirs: Collection[str]) -> RevisionFiles:
    """Return the files without those that no revision has any more.

    Args:
        codes: Codes of the remembered revisions.
        workdirs: Working directories of existing replicas.
    """
    newest = {files_.of(code) for code in {*codes, files_.code}}
    return replace(files_, sent=tuple(sent for sent in files_.sent if sent in newest or sent.workdir in workdirs))


def _sent(code: str, workdir: str, revision: str | None) -> SentFiles:
    try:
        commit = json.dumps({**parse_object(revision or "", max_bytes=MOST_BYTES), "diff": None})
    except ValueError:
        commit = None
    return SentFiles(code=code, workdir=workdir, commit=commit)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
