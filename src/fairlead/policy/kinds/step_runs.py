"""Builds the runs and sweeps of a pipeline's steps, each a child of the pipeline."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import partial

from fairlead.policy.kinds.record import Family
from fairlead.policy.kinds.steps import Task, input_name, place_name, variables_of
from fairlead.runtime.places import is_url
from fairlead.specs.pipeline import DRIVER, ITEM_DIGITS, STEP_DIR, Pipeline, Step, as_run, child_name
from fairlead.specs.sweep import Sweep, Trial
from fairlead.specs.training import Training
from fairlead.state.run_places import place_of
from fairlead.state.snapshot import StepAsked


def child_spec(pipeline: Pipeline, step: Step, variables: Mapping[str, str]) -> Training | Sweep:
    """Return the run or sweep that a step describes, as a spec by itself.

    Args:
        variables: Additional environment variables of its program.
    """

    def ours(program: Training) -> dict[str, str]:
        return {**pipeline.env, **step.env, **program.env, **variables}

    if step.sweep is None:
        assert step.training is not None, "a command is no child"
        run = as_run(step.training, step.training.name)
        secrets = pipeline.secrets_of(run)
        return replace(run, env=ours(run), secrets=secrets, labels={**pipeline.labels, **run.labels})
    values = {spec_field.name: getattr(step.sweep, spec_field.name) for spec_field in fields(Sweep)}
    secrets = pipeline.secrets_of(step.sweep.trial)
    trial: Trial = replace(step.sweep.trial, env=ours(step.sweep.trial), secrets=secrets)
    return Sweep(**{**values, "trial": trial, "labels": {**pipeline.labels, **step.sweep.labels}})


def asked_children(pipeline: Pipeline, family: Family, asks: Iterable[StepAsked]) -> dict[str, Training | Sweep]:
    """Return the missing children that a driver in a pod requests, by their names in the pipeline.

    The driver keeps inputs and outputs of steps below its own place, which all of them can reach: a directory where
    they read and write, or a URL from which each pod downloads and to which it uploads.
    """
    driver, to = family.children[DRIVER], pipeline.checkpoint.to
    children: dict[str, Training | Sweep] = {}
    for ask in asks:
        step = pipeline.steps.get(ask.step)
        name = child_name(ask.step, ask.index)
        if to is None or step is None or step.child is None or not _can_be_asked(step, ask):
            continue  # a program may have written anything where its driver reports
        if name in family.children:
            continue
        below = f"{place_of(to, driver)}/steps/{place_name(ask.step, ask.index)}"
        task = Task(step=ask.step, index=ask.index, item=ask.item)
        here = STEP_DIR if is_url(to) else below
        variables = variables_of(pipeline, task, f"{here}/outputs", partial(_input_at, here))
        if is_url(to):
            variables |= {"FAIRLEAD_STEP_GIVEN": below, "FAIRLEAD_STEP_DIR": STEP_DIR}
            # No trial of a sweep returns anything by itself.
            variables |= {} if step.training is None else {"FAIRLEAD_STEP_RETURNS": below}
        children[name] = child_spec(pipeline, step, variables)
    return children


def _input_at(below: str, need: str, output: str) -> str:
    return f"{below}/inputs/{input_name(need, output)}"


def _can_be_asked(step: Step, ask: StepAsked) -> bool:
    if not step.is_fanned_out:
        return ask.index is None and ask.item is None
    return ask.index is not None and 0 <= ask.index < 10**ITEM_DIGITS and ask.item is not None
