"""Options that override keys of a spec: ``--set`` for any, and ``--nodes``, ``--gpu``, ``--env`` and ``--label``."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from fairlead.cluster.port import Spec
from fairlead.deferred import deferred
from fairlead.frozen import dataclass
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.training import Training

if TYPE_CHECKING:
    from fairlead.specs.formats import settings as spec_settings
    from fairlead.specs.formats.settings import Setting
    from fairlead.specs.pipeline import Pipeline
else:
    spec_settings = deferred("fairlead.specs.formats.settings")

Command = TypeVar("Command", bound=Callable[..., Any])

set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key, such as resources.memory=16Gi; `null` removes it. May be repeated.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Settings from the options. Two options for the same key are refused, even with equal values.

    Attributes:
        settings: ``KEY=VALUE`` of any key.
        nodes, gpu: Values of the keys ``nodes`` and ``resources.gpu``, as in a file; None for the file's.
        env, label: ``KEY=VALUE`` of variables and labels, added to the file's.
    """

    settings: tuple[str, ...] = ()
    nodes: str | None = None
    gpu: str | None = None
    env: tuple[str, ...] = ()
    label: tuple[str, ...] = ()

    def of(self, spec: Spec) -> Spec:
        """Return the spec with all overrides.

        Raises:
            InvalidSpec: A key is unknown or given twice, or a value is wrong.
            click.UsageError: A pair is malformed, two options set the same key, or the spec is not a Training.
        """
        if self == Overrides():
            return spec
        if not isinstance(spec, Training):
            kind = type(spec).__name__
            raise click.UsageError(
                f"--set, --nodes, --gpu, --env and --label are for a Training; {spec.name} is a {kind}."
            )
        return cast(Spec, self._of_training(spec))

    def _of_training(self, spec: Training) -> Training:
        variables, labels = _pairs(self.env, "--env"), _pairs(self.label, "--label")
        if self.settings or self.nodes is not None or self.gpu is not None:
            spec = self._with_settings(spec, {*(("env", name) for name in variables), *(("labels", n) for n in labels)})
        if variables:
            spec = _changed(spec, "--env", env={**spec.env, **variables})
        return _changed(spec, "--label", labels={**spec.labels, **labels}) if labels else spec

    def of_pipeline(self, pipeline: "Pipeline") -> "Pipeline":
        """Return the pipeline with variables and labels; other keys cannot be overridden.

        Raises:
            click.UsageError: Another option is given, or a pair is malformed.
        """
        if self.settings or self.nodes is not None or self.gpu is not None:
            raise click.UsageError(
                f"{pipeline.name} is a Pipeline, for which --env and --label can be given; "
                "change other keys in its file."
            )
        variables, labels = _pairs(self.env, "--env"), _pairs(self.label, "--label")
        try:
            return replace(pipeline, env={**pipeline.env, **variables}, labels={**pipeline.labels, **labels})
        except BrokenRules as error:
            raise click.UsageError(f"--env or --label: {error.problems[0][1]}") from error

    def _with_settings(self, spec: Training, pairs: set[tuple[str, ...]]) -> Training:
        settings = [spec_settings.read_setting(text) for text in self.settings]
        own = {option: spec_settings.read_setting(f"{key}={value}") for option, key, value in self._own()}
        for setting in settings:
            twice = [option for option, other in own.items() if _overlap(setting, other.path)]
            twice += [f"--{path[0].rstrip('s')}" for path in pairs if _overlap(setting, path)]
            if twice:
                raise click.UsageError(f"--set {setting.key} and {twice[0]} say the same key: give one of them.")
        spec = spec_settings.with_settings(spec, settings) if settings else spec
        for option, setting in own.items():
            spec = spec_settings.with_settings(spec, [setting], source=option)
        return spec

    def _own(self) -> Iterator[tuple[str, str, str]]:
        if self.nodes is not None:
            yield "--nodes", "nodes", self.nodes
        if self.gpu is not None:
            yield "--gpu", "resources.gpu", self.gpu


def override_options(command: Command) -> Command:
    """Add the options; the function gets ``overrides: Overrides``."""

    @wraps(command)
    def with_overrides(**parameters: Any) -> Any:
        own = {name: parameters.pop(name) for name in ("settings", "nodes", "gpu", "env", "label")}
        return command(overrides=Overrides(**own), **parameters)

    decorated: Any = with_overrides
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    result: Command = decorated
    return result


def _overlap(setting: "Setting", path: tuple[str, ...]) -> bool:
    """Return whether a setting sets a key, a mapping that contains it, or a part of its value."""
    length = min(len(setting.path), len(path))
    return setting.path[:length] == path[:length]


def _pairs(items: tuple[str, ...], option: str) -> dict[str, str]:
    values = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{option} {item!r}: give KEY=VALUE.")
        values[key] = value
    return values


def _changed(spec: Training, option: str, **changes: Any) -> Training:
    try:
        return replace(spec, **changes)
    except BrokenRules as error:
        raise click.UsageError(f"{option}: {error.problems[0][1]}") from error


_OPTIONS: list[Callable[[Any], Any]] = [
    click.option("--nodes", metavar="N[..M]", help="Number of nodes, or a range such as 2..8; the key `nodes`."),
    click.option(
        "--gpu", "--gpus", "gpu", metavar="GPU", help="GPUs of each node, such as 2 or A100:8; key `resources.gpu`."
    ),
    click.option(
        "--env", multiple=True, metavar="KEY=VALUE", help="Environment variable of the program; may be repeated."
    ),
    click.option("--label", multiple=True, metavar="KEY=VALUE", help="Label of the run; may be repeated."),
    set_option,
]
