"""The bill of materials names each package of the image, and is the same for the same image."""

import json

from fairlead.control.image.layers import LayerFile
from fairlead.control.image.references import read_reference
from fairlead.control.image.sbom import bill_of_materials

BASE = read_reference("registry.example/python:3.12-slim").at("sha256:" + "0" * 64)
FILES = {
    "click/__init__.py": LayerFile(content=b""),
    "click-8.5.1.dist-info/METADATA": LayerFile(
        content=b"Name: click\nVersion: 8.5.1\nLicense-Expression: BSD-3-Clause\n\n"
    ),
    "old-1.dist-info/METADATA": LayerFile(content=b"Name: Old.Name\nVersion: 1\nLicense: a text of its own\n\n"),
    "old-1.dist-info/RECORD": LayerFile(content=b"Name: not metadata\n"),
}


def test_each_package_is_listed_with_its_version_and_licence() -> None:
    document = json.loads(bill_of_materials(FILES, BASE))
    listed = {entry["name"]: (entry["versionInfo"], entry["licenseDeclared"]) for entry in document["packages"]}
    assert listed["click"] == ("8.5.1", "BSD-3-Clause")
    assert listed["Old.Name"] == ("1", "NOASSERTION")
    assert listed["registry.example/python"] == ("sha256:" + "0" * 64, "NOASSERTION")
    assert len(listed) == 4


def test_every_identifier_is_unique_and_every_relation_names_one_that_exists() -> None:
    document = json.loads(bill_of_materials(FILES, BASE))
    identifiers = [entry["SPDXID"] for entry in document["packages"]]
    assert len(identifiers) == len(set(identifiers))
    assert {relation["relatedSpdxElement"] for relation in document["relationships"]} == set(identifiers)
    assert all(set(identifier) <= set("SPDXRef-abcdefghijklmnopqrstuvwxyz0123456789") for identifier in identifiers)


def test_the_same_packages_give_the_same_bytes_in_any_order() -> None:
    reversed_files = dict(reversed(FILES.items()))
    assert bill_of_materials(FILES, BASE) == bill_of_materials(reversed_files, BASE)
    changed = {**FILES, "new-1.dist-info/METADATA": LayerFile(content=b"Name: new\nVersion: 1\n\n")}
    assert (
        json.loads(bill_of_materials(changed, BASE))["documentNamespace"]
        != json.loads(bill_of_materials(FILES, BASE))["documentNamespace"]
    )
