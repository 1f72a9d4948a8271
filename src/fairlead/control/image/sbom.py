"""Lists what Fairlead adds to a base image, as an SPDX 2.3 document in JSON: a software bill of materials.

The packages are read from the metadata in their wheels, so the list is of what the image has. The base image is one
entry with its digest; its own contents are not inspected.
"""

from collections.abc import Iterator, Mapping
from email.parser import BytesHeaderParser
from typing import Any

from fairlead import __version__
from fairlead.control.image.content import EPOCH, digest_of, to_json
from fairlead.control.image.layers import LayerFile
from fairlead.control.image.references import Reference

MEDIA_TYPE = "application/spdx+json"
ROOT = "SPDXRef-fairlead"


def bill_of_materials(packages: Mapping[str, LayerFile], base: Reference) -> bytes:
    """Return the document; the same packages on the same base give the same bytes.

    Args:
        packages: Files of unpacked wheels, by their path below the import path.
        base: The base image, by digest.
    """
    entries = [
        _entry(ROOT, "fairlead", __version__, "Apache-2.0", f"pkg:pypi/fairlead@{__version__}"),
        _entry("SPDXRef-base", str(base).partition("@")[0], str(base.digest), "NOASSERTION", f"pkg:oci/{base}"),
        *_python_packages(packages),
    ]
    relations = [
        _relation("SPDXRef-DOCUMENT", "DESCRIBES", ROOT),
        *(_relation(ROOT, "DEPENDS_ON", entry["SPDXID"]) for entry in entries[1:]),
    ]
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"fairlead-{__version__}",
        "documentNamespace": f"https://fairlead.dev/sbom/{digest_of(to_json(entries)).removeprefix('sha256:')}",
        "creationInfo": {"created": EPOCH, "creators": [f"Tool: fairlead-{__version__}"]},
        "packages": entries,
        "relationships": relations,
    }
    return to_json(document)


def _python_packages(packages: Mapping[str, LayerFile]) -> Iterator[dict[str, Any]]:
    for path in sorted(packages):
        directory, _, name = path.partition("/")
        if not directory.endswith(".dist-info") or name != "METADATA":
            continue
        metadata = BytesHeaderParser().parsebytes(packages[path].content)
        title, version = str(metadata["Name"]), str(metadata["Version"])
        # Only the expression is in SPDX's language; the older field is free text.
        licence = str(metadata["License-Expression"] or "NOASSERTION")
        key = "".join(letter if letter.isalnum() else "-" for letter in title.lower())
        yield _entry(f"SPDXRef-pypi-{key}", title, version, licence, f"pkg:pypi/{title.lower()}@{version}")


def _entry(identifier: str, name: str, version: str, licence: str, url: str) -> dict[str, Any]:
    return {
        "SPDXID": identifier,
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
        "externalRefs": [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": url},
        ],
    }


def _relation(element: str, kind: str, related: str) -> dict[str, str]:
    return {"spdxElementId": element, "relationshipType": kind, "relatedSpdxElement": related}
