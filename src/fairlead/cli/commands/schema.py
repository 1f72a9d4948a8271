"""``fairlead schema``: print the JSON Schema for completion and validation in editors."""

import json

import click

from fairlead.specs.formats.schema import json_schema


@click.command()
def schema() -> None:
    """Print the JSON Schema of spec files."""
    print(json.dumps(json_schema(), indent=2))
