"""The commands and options, frozen: a change of them is a change of surface.txt, to be seen in review."""

from pathlib import Path

import click

from fairlead.cli.main import COMMANDS, group

GOLDEN = Path(__file__).with_name("surface.txt")
# These print one thing in one form: a schema, which is JSON, a shell script, objects for kubectl, logs as JSON lines,
# what another program says, metrics in Prometheus' format; a group has commands below it.
WITHOUT_JSON = {
    "schema",
    "completion",
    "render",
    "operator",
    "exec",
    "ssh",
    "debug",
    "prices",
    "keys",
    "secrets",
    "image",
    "registry",
    "metrics",
    "model",
    "node",
    "data",
    "fleet",
    "workspace",
    "workspace delete-home",
    "fleet run",
    "metrics rules",
    "metrics dashboards",
}


def surface() -> str:
    """A block for each command: its arguments in order, then its options."""
    blocks = [_block("fairlead", group)]
    blocks += [_block(f"fairlead {name}", command) for name, command in commands().items()]
    return "\n".join(blocks)


def commands() -> dict[str, click.Command]:
    """Every command by its words; those of a group after it."""
    context = click.Context(group)
    found = {}
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        found[name] = command
        if isinstance(command, click.Group):
            found |= {f"{name} {word}": below for word, below in command.commands.items()}
    return found


def _block(name: str, command: click.Command) -> str:
    lines = [name]
    for parameter in command.params:
        many = "..." if parameter.nargs == -1 or parameter.multiple else ""
        kind = "" if isinstance(parameter, click.Option) and parameter.is_flag else f" {parameter.type.name}"
        need = ", required" if parameter.required else ""
        if isinstance(parameter, click.Option):
            lines.append(f"    {', '.join(parameter.opts)}{kind}{many}{need}")
        else:
            lines.append(f"    {str(parameter.name).upper()}{kind}{many}{need}")
    return "\n".join(lines) + "\n"


def test_the_flag_surface_is_the_golden_one() -> None:
    assert surface() == GOLDEN.read_text()


def test_every_command_speaks_json() -> None:
    for name, command in commands().items():
        if name not in WITHOUT_JSON:
            assert any("--json" in parameter.opts for parameter in command.params), name


def test_every_option_and_argument_is_explained() -> None:
    for name, command in commands().items():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (name, parameter.name)
            else:
                assert str(parameter.name).upper() in str(command.help), (name, parameter.name)
