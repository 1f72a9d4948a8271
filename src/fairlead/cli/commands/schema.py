"""``fairlead schema``: for editors that complete and check as one types."""

import json

import click


@click.command()
def schema() -> None:
    """Print the JSON Schema of spec files."""
    from fairlead.specs.formats.schema import json_schema

    print(json.dumps(json_schema(), indent=2))
