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
        return replace(run, env=ours(run), labels={**pipeline.labels, **run.labels})
    given = {each.name: getattr(step.sweep, each.name) for each in fields(Sweep)}
    trial: Trial = replace(step.sweep.trial, env=ours(step.sweep.trial))
    return Sweep(**{**given, "trial": trial, "labels": {**pipeline.labels, **step.sweep.labels}})


def asked_children(pipeline: Pipeline, family: Family, asks: Iterable[StepAsked]) -> dict[str, Training | Sweep]:
    """Return the missing children that a driver in a pod requests, by their names in the pipeline.

    The driver keeps inputs and outputs of steps below its own place, which all of them can reach: a directory where
    they read and write, or a URL from which each pod downloads and to which it uploads.
    """
    driver, to = family.children[DRIVER], pipeline.checkpoint.to
    found: dict[str, Training | Sweep] = {}
    for asked in asks:
        step = pipeline.steps.get(asked.step)
        name = child_name(asked.step, asked.index)
        if to is None or step is None or step.child is None or not _can_be_asked(step, asked):
            continue  # a program may have written anything where its driver reports
        if name in family.children:
            continue
        below = f"{place_of(to, driver)}/steps/{place_name(asked.step, asked.index)}"
        task = Task(step=asked.step, index=asked.index, item=asked.item)
        here = STEP_DIR if is_url(to) else below
        variables = variables_of(pipeline, task, f"{here}/outputs", partial(_input_at, here))
        if is_url(to):
            variables |= {"FAIRLEAD_STEP_GIVEN": below, "FAIRLEAD_STEP_DIR": STEP_DIR}
            # No trial of a sweep returns anything by itself.
            variables |= {} if step.training is None else {"FAIRLEAD_STEP_RETURNS": below}
        found[name] = child_spec(pipeline, step, variables)
    return found


def _input_at(below: str, need: str, output: str) -> str:
    return f"{below}/inputs/{input_name(need, output)}"


def _can_be_asked(step: Step, asked: StepAsked) -> bool:
    if not step.is_fanned_out:
        return asked.index is None and asked.item is None
    return asked.index is not None and 0 <= asked.index < 10**ITEM_DIGITS and asked.item is not None
