"""Options that select runs by their properties: ``--phase``, ``--label`` and ``--all``."""

import sys
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from fairlead.cli.families import without_children
from fairlead.cli.names import RunName, find_all
from fairlead.cli.show import message
from fairlead.cli.target import target_in
from fairlead.cluster.client import ClusterClient
from fairlead.cluster.selection import RunSelection
from fairlead.errors import FairleadError
from fairlead.specs.pool import LABEL_NAME, LABEL_VALUE
from fairlead.state.snapshot import AnyWorkload, Phase
from fairlead.text.lists import listed

Command = TypeVar("Command", bound=Callable[..., Any])

# Maximum names in a list of selected runs; the rest is a count.
MOST_NAMED = 20


class Phases(click.ParamType[frozenset[Phase]]):
    """Phases, separated by commas, in any case.

    Args:
        allowed: Phases that the command accepts.
    """

    name = "phases"

    def __init__(self, allowed: Iterable[Phase] = tuple(Phase)) -> None:
        self._allowed = tuple(phase for phase in Phase if phase in set(allowed))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[Phase]:
        return frozenset(self._phase(word.strip(), param, ctx) for word in str(value).split(","))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        earlier_phases, comma, prefix = incomplete.rpartition(",")
        matches = (phase for phase in self._allowed if phase.value.lower().startswith(prefix.lower()))
        return [CompletionItem(f"{earlier_phases}{comma}{phase}") for phase in matches]

    def _phase(self, word: str, param: click.Parameter | None, ctx: click.Context | None) -> Phase:
        known = {phase.value.lower(): phase for phase in Phase}
        phase = known.get(word.lower())
        allowed = ", ".join(self._allowed)
        if phase is None:
            import difflib  # here and not above: a right command line does not need it

            similar_words = difflib.get_close_matches(word.lower(), known, n=1)
            hint = f" Did you mean {known[similar_words[0]]}?" if similar_words else ""
            self.fail(f"{word!r} is not a phase.{hint} Phases: {allowed}.", param, ctx)
        if phase not in self._allowed:
            self.fail(f"this command does nothing to runs that are {phase}; phases: {allowed}.", param, ctx)
        return phase


class Label(click.ParamType[tuple[str, str | None]]):
    """A label as KEY=VALUE, or KEY for any value; completed from existing runs."""

    name = "label"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str | None]:
        key, equals, label_value = str(value).partition("=")
        problem = LABEL_NAME.problem(key) or (LABEL_VALUE.problem(label_value) if equals else None)
        if problem is not None:
            self.fail(f"{problem}; give KEY=VALUE, or KEY for any value, and each label its own --label.", param, ctx)
        return key, label_value if equals else None

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            cluster = target_in(ctx).quietly()
            runs = cluster.workloads()
        except (FairleadError, click.UsageError):  # no completions; the command itself reports the error
            return []
        cluster.close()
        labels = {f"{name}={value}" for run in runs for name, value in run.spec.labels.items()}
        return [CompletionItem(label) for label in sorted(labels) if label.startswith(incomplete)]


def selection_options(*, phases: Iterable[Phase] = tuple(Phase), noun: str = "runs") -> Callable[[Command], Command]:
    """Add ``--phase`` and ``--label``; the function gets ``selection: RunSelection``.

    Args:
        phases: Accepted phases.
        noun: Noun for the runs, for the help.
    """

    def add(command: Command) -> Command:
        @wraps(command)
        def with_selection(**parameters: Any) -> Any:
            phases, labels = parameters.pop("phase"), parameters.pop("label")
            return command(
                selection=RunSelection(phases=frozenset().union(*phases), labels=tuple(dict.fromkeys(labels))),
                **parameters,
            )

        with_options: Any = with_selection
        with_options = click.option(
            "--label",
            type=Label(),
            multiple=True,
            metavar="KEY[=VALUE]",
            help=f"Only {noun} with this label; if repeated, with all of these labels.",
        )(with_options)
        with_options = click.option(
            "--phase",
            type=Phases(phases),
            multiple=True,
            metavar="PHASE,...",
            help=f"Only {noun} in one of these phases.",
        )(with_options)
        result: Command = with_options
        return result

    return add


def names_or_selection(*, phases: Iterable[Phase], noun: str) -> Callable[[Command], Command]:
    """Add ``NAMES``, ``--all``, ``--phase``, ``--label`` and ``--yes``.

    The function gets ``names``, ``everything``, ``selection`` and ``yes``; see ``selected_runs``.
    """

    def add(command: Command) -> Command:
        with_options: Any = selection_options(phases=phases, noun=noun)(command)
        with_options = click.option("--yes", is_flag=True, help="Do not ask.")(with_options)
        with_options = click.option("--all", "everything", is_flag=True, help=f"All {noun} instead of NAMES.")(
            with_options
        )
        with_options = click.argument("names", nargs=-1, type=RunName())(with_options)
        result: Command = with_options
        return result

    return add


def is_by_selection(names: tuple[str, ...], selection: RunSelection, *, everything: bool) -> bool:
    """Return whether runs are selected by properties instead of names.

    Raises:
        click.UsageError: Both or neither are given.
    """
    by_selection = everything or selection != RunSelection()
    if names and by_selection:
        raise click.UsageError("give NAMES, or choose runs by --all, --phase and --label: not both.")
    if not names and not by_selection:
        raise click.UsageError("give NAMES, or choose runs by --all, --phase or --label.")
    return by_selection


def selected_runs(
    cluster: ClusterClient,
    names: tuple[str, ...],
    selection: RunSelection,
    *,
    everything: bool,
    yes: bool,
    verb: str,
    applies: Callable[[AnyWorkload], bool],
    always_asks: bool = False,
    warn: Callable[[list[AnyWorkload]], None] | None = None,
) -> list[AnyWorkload]:
    """Return the selected runs; a selection by properties is shown to the user for confirmation.

    Args:
        verb: The action, such as "Stop".
        applies: Returns whether the action applies to a run; filters a selection by properties.
        always_asks: Ask for confirmation of named runs too.
        warn: Describes the consequences before the question.

    Raises:
        click.UsageError: Names and a selection contradict each other, or no terminal can show the question.
        click.Abort: The user declines.
        NotFound: No run has a name.
    """
    by_selection = is_by_selection(names, selection, everything=everything)
    runs = [run for run in cluster.select(selection) if applies(run)] if by_selection else find_all(cluster, names)
    runs = without_children(runs)
    if warn is not None:
        warn(runs)
    if not runs:
        message(f"No run {f'with {selection} ' if selection != RunSelection() else ''}is there to {verb.lower()}.")
    elif always_asks or by_selection:
        confirm(f"{verb} {describe_runs(runs)}?", yes=yes, announce=by_selection)
    return runs


def confirm(question: str, *, yes: bool, announce: bool = True) -> None:
    """Ask for confirmation, unless ``yes`` is set; then print the action if ``announce`` is set.

    Raises:
        click.UsageError: No terminal can show the question.
        click.Abort: The user declines.
    """
    if yes:
        if announce:
            message(question.removesuffix("?") + ".")
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError(f"standard input is not a terminal, so this cannot be confirmed: {question} Give --yes.")
    click.confirm(question, abort=True, err=True)


def describe_runs(runs: list[AnyWorkload]) -> str:
    """Describe runs by number and names, up to a limit."""
    short_names = [run.spec.name for run in runs]
    is_unique = len(set(short_names)) == len(short_names)
    names = short_names if is_unique else [f"{run.spec.team}/{run.spec.name}" for run in runs]
    shown = listed(names, MOST_NAMED)
    return shown if len(runs) == 1 else f"{len(runs)} runs: {shown}"
