"""Runs the command ``fairlead``: imports the subcommand, and converts errors to a sentence and an exit code."""

import io
import os
import sys
from importlib import import_module
from typing import Any

import click

from fairlead import __version__, errors
from fairlead.cli.ahead import start_ahead
from fairlead.cli.streams import discard, guard_terminal
from fairlead.runtime import utf8_mode

# By task of the user. Each command is in a file that is imported only when the command is used.
SECTIONS = {
    "Run and change runs": {
        "init": ("init", "Write a spec file and a program to start from."),
        "run": ("run", "Submit runs and follow them."),
        "plan": ("plan", "Show what a file would do, without doing it."),
        "apply": ("apply", "Run pipelines automatically."),
        "attach": ("attach", "Follow runs until they end."),
        "stop": ("intents", "Stop runs after a checkpoint."),
        "suspend": ("intents", "Pause runs and release what they hold."),
        "resume": ("resume", "Continue suspended, stopped or failed runs."),
        "workspace": ("workspace", "Open workspaces, and remove their homes."),
        "fleet": ("fleet", "Distribute runs over several clusters."),
        "rollback": ("rollback", "Roll an endpoint back to an earlier revision."),
        "gateway": ("gateway", "Show or set the proxy in front of endpoints."),
        "keys": ("keys", "Create and revoke keys of teams for endpoints."),
        "delete": ("intents", "Stop runs and delete their records and files."),
        "prune": ("prune", "Delete finished runs that are old."),
    },
    "See what runs do": {
        "status": ("status", "List runs, or show one with its reasons."),
        "queue": ("queue", "List pending runs with expected start times."),
        "logs": ("logs", "Show the output of a run's ranks."),
        "events": ("events", "Show what happened to runs, and why."),
        "show": ("show_run", "Show a run's spec and code, or how two runs differ."),
        "diagnose": ("diagnose", "Show what slow ranks cost a run, and why."),
        "nodes": ("nodes", "List nodes with their risk and failures."),
        "top": ("top", "Show resource usage of runs."),
        "ui": ("ui", "Serve the web page of this machine."),
        "debug": ("debug", "Open a workspace with what a run had."),
        "ssh": ("ssh", "Connect to a workspace with sshd."),
        "exec": ("exec", "Run a command in a rank's environment."),
        "port-forward": ("port_forward", "Forward local ports to a rank."),
    },
    "Compare results": {
        "compare": ("compare", "Compare the specs, metrics and code of runs."),
        "sweep": ("sweep", "Show the trials of a sweep, and which is best."),
        "data": ("data", "List, copy and cache data sets."),
        "model": ("model", "Manage versions of models, and promote them."),
        "lineage": ("lineage", "Show where an output of a pipeline came from."),
    },
    "Simulate, and see costs": {
        "simulate": ("simulate", "Simulate a trace of runs on a cluster."),
        "cost": ("cost", "Show what runs and idle nodes cost."),
        "prices": ("prices", "Set and list prices of nodes."),
        "metrics": ("metrics", "Print or serve metrics for Prometheus."),
    },
    "Check specs": {
        "validate": ("validate", "Check spec files and report every problem."),
        "render": ("render", "Print specs as Kubernetes objects."),
        "schema": ("schema", "Print the JSON Schema of spec files."),
    },
    "Set up clusters": {
        "install": ("install", "Install Fairlead on a Kubernetes cluster."),
        "image": ("image", "Build the container image of Fairlead."),
        "registry": ("registry", "Set the registry of images with packages of runs."),
        "uninstall": ("uninstall", "Remove Fairlead from a Kubernetes cluster."),
        "operator": ("operator", "Run the operator of a Kubernetes cluster."),
        "clusters": ("clusters", "List the clusters that runs can use."),
        "node": ("nodes", "Close a node for new runs, or open it again."),
    },
    "Set up this machine": {
        "doctor": ("doctor", "Check the setup and report problems."),
        "secrets": ("secrets", "Set, list and remove secrets of this machine."),
        "notifications": ("notifications", "List and try destinations of notifications."),
        "completion": ("completion", "Print the completion script of a shell."),
    },
}
COMMANDS = {name: command for section in SECTIONS.values() for name, command in section.items()}
USAGE, TROUBLE, OUR_MISTAKE, DETACHED = 2, 7, 70, 130
EXIT_CODES = (
    (errors.InvalidSpec, USAGE),
    (errors.InvalidArgument, USAGE),
    (errors.CannotFit, 4),
    (errors.NotFound, 5),
    (errors.NameTaken, 6),
    (errors.Conflict, 6),
    (errors.FairleadError, TROUBLE),
)
COMPLETION = "_FAIRLEAD_COMPLETE"
OTHER_WORDS = {
    **dict.fromkeys(("ls", "list", "ps", "get", "describe", "squeue", "info"), ("status",)),
    **dict.fromkeys(("cancel", "kill", "scancel", "down"), ("stop",)),
    **dict.fromkeys(("submit", "launch", "start", "sbatch"), ("run",)),
    **dict.fromkeys(("rm", "remove"), ("delete",)),
    **dict.fromkeys(("log", "tail"), ("logs",)),
}
"""Words of other tools for a command."""
EPILOG = (
    "Exit codes: 0 success, 1 the run failed, 2 usage or spec error, 3 the run was stopped, 4 it can never fit, "
    "5 not found, 6 conflict with its state or name, 7 cluster error, 70 internal error, 130 interrupted or detached."
)


class LazyGroup(click.Group):
    """A group that knows its commands by name and summary, and imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"fairlead.cli.commands.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # One width for all sections, so that the summaries align.
        width = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", sentence) for name, (_, sentence) in commands.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = OTHER_WORDS.get(args[0]) or difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            ctx.fail(f"there is no command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fairlead")
def group() -> None:
    """Run, schedule and supervise ML training, from a laptop to Kubernetes."""


def main() -> None:
    """Run the command line and exit; never print a traceback."""
    utf8_mode.enter()
    start_ahead(sys.argv[1:], os.environ)
    sys.exit(call(sys.argv[1:]))


def call(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    code = _run(arguments)
    try:
        # Flush the buffer now, while a write error can still be reported.
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        code = code or _explain(error)
    return code


def _run(arguments: list[str]) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A program may print characters that the terminal's encoding lacks; showing them must not fail.
        sys.stdout.reconfigure(errors="backslashreplace")
    guard_terminal()
    try:
        _refuse_other_encodings(arguments)
        if COMPLETION in os.environ:
            group.main(prog_name="fairlead", complete_var=COMPLETION)
        # Not click's main(): it exits with 1, the exit code of a failed run, when a pipe is closed.
        with group.make_context("fairlead", arguments) as context:
            result: Any = group.invoke(context)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        return DETACHED
    except KeyboardInterrupt:
        # `run` reports this itself after its start; before, it cannot have submitted anything.
        has_begun = arguments[:1] != ["run"] or "fairlead.cli.commands.run" in sys.modules
        print("\nInterrupted." if has_begun else "\nInterrupted; nothing was submitted.", file=sys.stderr)
        return DETACHED
    except Exception as error:  # noqa: BLE001 (a user is to see a sentence, not a traceback)
        return _explain(error)


def _refuse_other_encodings(arguments: list[str]) -> None:
    """Refuse arguments with bytes that are not UTF-8, which no spec, database or API server can hold."""
    for argument in arguments:
        if not argument.isascii() and any("\ud800" <= character <= "\udfff" for character in argument):
            raise click.UsageError(
                f"The argument {argument!a} is not UTF-8 text; rename the file, or write it in UTF-8."
            )


def _explain(error: Exception) -> int:
    """Print an error for the user and return its exit code."""
    if isinstance(error, BrokenPipeError):
        # The reader of the output has closed the pipe.
        discard(sys.stdout)
        discard(sys.stderr)
        return 0
    try:
        return _tell(error)
    except OSError:  # the error cannot be printed either
        discard(sys.stderr)
        return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), OUR_MISTAKE)


def _tell(error: Exception) -> int:
    if isinstance(error, click.ClickException):
        if isinstance(error, click.NoSuchOption) and error.option_name[1:2].isdigit():
            text = f"{error.option_name} is read as an option; no number below 0 is allowed here."
            error = click.UsageError(text, error.ctx)
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
    if isinstance(error, ModuleNotFoundError) and (package := (error.name or "").partition(".")[0]) in errors.EXTRAS:
        extra = errors.EXTRAS[package]
        print(f"fairlead: This needs {package}: `pip install 'fairlead[{extra}]'` installs it.", file=sys.stderr)
        return TROUBLE
    print(f"fairlead: internal error: {type(error).__name__}: {error}", file=sys.stderr)
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
