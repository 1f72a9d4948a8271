"""Writes plain data as YAML from which the reader infers the same types. The only module that writes YAML."""

from typing import Any

import yaml

from fairlead.specs.field_types import Tag
from fairlead.specs.formats.documents import core_tag


def dump(content: dict[str, Any]) -> str:
    """Write a YAML document, with keys in order and multi-line texts as blocks."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**30)


class _Dumper(yaml.SafeDumper):
    """Quotes every text that YAML 1.2 would read as another type; PyYAML's default follows YAML 1.1."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = None
        if "\n" in text.rstrip("\n") and not text[0].isspace():
            style = "|"
        elif core_tag(text) is not Tag.TEXT:
            style = '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _Dumper.represent_text)
