"""The command ``fairlead``: finds the command's file, and turns errors into a sentence and an exit code."""

import io
import os
import sys
from importlib import import_module
from typing import Any

import click

from fairlead import __version__, errors
from fairlead.cli.streams import discard

# Each command lives in a file of its own, imported only when it is used.
COMMANDS = {
    "run": ("run", "Submit runs and follow them."),
    "plan": ("plan", "Show what a file would do, without doing it."),
    "status": ("status", "List runs, or say how one is and why."),
    "logs": ("logs", "Show the output of a run's ranks."),
    "events": ("events", "Show what happened, and why."),
    "top": ("top", "Show what runs use of what they hold."),
    "exec": ("exec", "Run a command where a rank runs."),
    "port-forward": ("port_forward", "Let ports of this machine lead to a rank's."),
    "attach": ("attach", "Follow a run that is under way."),
    "stop": ("intents", "Stop runs, with a checkpoint."),
    "suspend": ("intents", "Stop runs for now; they hold nothing."),
    "resume": ("resume", "Let suspended, stopped or failed runs go on."),
    "delete": ("intents", "Stop runs and remove all that is kept of them."),
    "simulate": ("simulate", "Replay a trace on a cluster that need not exist."),
    "validate": ("validate", "Check spec files; tells every mistake at once."),
    "render": ("render", "Print spec files as Kubernetes takes them, and their pods."),
    "install": ("install", "Put Fairlead onto a Kubernetes cluster."),
    "uninstall": ("uninstall", "Take Fairlead off a Kubernetes cluster."),
    "schema": ("schema", "Print the JSON Schema of spec files."),
    "operator": ("operator", "Keep the runs of a Kubernetes cluster going."),
    "clusters": ("clusters", "List where runs can go."),
    "doctor": ("doctor", "Look for what would get in the way."),
    "completion": ("completion", "Print a shell's completion script."),
}
USAGE, TROUBLE, OUR_MISTAKE, DETACHED = 2, 7, 70, 130
EXIT_CODES = (
    (errors.InvalidSpec, USAGE),
    (errors.CannotFit, 4),
    (errors.NotFound, 5),
    (errors.NameTaken, 6),
    (errors.Conflict, 6),
    (errors.FairleadError, TROUBLE),
)
COMPLETION = "_FAIRLEAD_COMPLETE"
EPILOG = (
    "Exit codes: 0 well, 1 the run failed, 2 wrong usage or spec, 3 the run was stopped, 4 it can never fit here, "
    "5 not found, 6 its state or name does not allow it, 7 the cluster is in trouble, 70 our mistake, 130 detached."
)


class LazyGroup(click.Group):
    """Knows its commands by name and sentence; imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"fairlead.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            ctx.fail(f"there is no command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fairlead")
def group() -> None:
    """Takes machine-learning work from a laptop to a cluster and keeps it running true."""


def main() -> None:
    """The entry point; never shows a traceback."""
    sys.exit(call(sys.argv[1:]))


def call(arguments: list[str]) -> int:
    """Carry out one command line; the exit code."""
    code = _run(arguments)
    try:
        # Whatever is still in the buffer is written now, while a failure to write it can still be told.
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        code = code or _explain(error)
    return code


def _run(arguments: list[str]) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A program may print what this terminal's encoding lacks; that must not end the one who shows it.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if COMPLETION in os.environ:
            group.main(prog_name="fairlead", complete_var=COMPLETION)
        # Not click's own main(): it ends with exit code 1, which is a failed run's, when a pipe is closed.
        with group.make_context("fairlead", arguments) as context:
            result: Any = group.invoke(context)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return DETACHED
    except Exception as error:  # noqa: BLE001 (a user is to see a sentence, not a traceback)
        return _explain(error)


def _explain(error: Exception) -> int:
    """Tell the user what went wrong; the exit code for it."""
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has seen enough.
        discard(sys.stdout)
        discard(sys.stderr)
        return 0
    try:
        return _tell(error)
    except OSError:  # nor can anything be told
        discard(sys.stderr)
        return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), OUR_MISTAKE)


def _tell(error: Exception) -> int:
    if isinstance(error, click.ClickException):
        error.show()
        return USAGE
    if isinstance(error, errors.FairleadError):
        print(f"fairlead: {error}", file=sys.stderr)
        return next(code for kind, code in EXIT_CODES if isinstance(error, kind))
    if isinstance(error, OSError):
        discard(sys.stdout)
        where = f"{error.filename}: " if error.filename else ""
        print(
            f"fairlead: {where}{error.strerror or error}. "
            "Check that the disk has room and that you may write there; `fairlead doctor` looks at both.",
            file=sys.stderr,
        )
        return TROUBLE
    print(f"fairlead: our mistake: {type(error).__name__}: {error}", file=sys.stderr)
    print(f"The traceback is in {_keep_traceback(error)}; please report it.", file=sys.stderr)
    return OUR_MISTAKE


def _keep_traceback(error: Exception) -> str:
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="fairlead-crash-", suffix=".txt", delete=False) as file:
        file.write("".join(traceback.format_exception(error)))
    return file.name


if __name__ == "__main__":
    main()
