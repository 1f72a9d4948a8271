"""``fairlead completion``: print a script that completes commands, options and names of runs."""

import click
from click.shell_completion import get_completion_class

from fairlead.cli.main import COMPLETION, group


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL; enable it with `eval "$(fairlead completion bash)"`."""
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three shells of the choice above"
    print(kind(group, {}, "fairlead", COMPLETION).source())
