"""The API for training scripts: ``with fairlead.run() as run``.

A session combines the environment, progress reports, stop notices, checkpoints and the agreement of the ranks. It works
the same under Fairlead, under torchrun and under plain python.

See decision 40.
"""

import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from fairlead.runtime import gpu_peak, run_key
from fairlead.runtime.arguments import check_number, passes, whole
from fairlead.runtime.checkpoint.cadence import Cadence
from fairlead.runtime.checkpoint.content import Content, Files, ProgramObjects
from fairlead.runtime.checkpoint.directory import open_store
from fairlead.runtime.checkpoint.restoring import Rejected, Restored, restore
from fairlead.runtime.checkpoint.saving import Saved, Saver
from fairlead.runtime.checkpoint.store import CheckpointSource, CheckpointStore
from fairlead.runtime.data.positions import DATA, DataPositions
from fairlead.runtime.elastic.beginnings import has_begun
from fairlead.runtime.elastic.boards import open_board
from fairlead.runtime.elastic.member_server import MEMBERS
from fairlead.runtime.elastic.membership import Membership
from fairlead.runtime.environment import Environment, read_environment
from fairlead.runtime.errors import LossNotFinite, Misuse, StoreUnavailable
from fairlead.runtime.hook import fairlead_stackdump
from fairlead.runtime.links import Links
from fairlead.runtime.parallelism.plan import ParallelPlan
from fairlead.runtime.parallelism.probing import Probe
from fairlead.runtime.parallelism.split import ParallelSplit, read_split
from fairlead.runtime.progress import Reporter
from fairlead.runtime.save_interval import SaveInterval, continued

if TYPE_CHECKING:
    import torch

    from fairlead.runtime.channels import Channel
    from fairlead.runtime.checkpoint.memory_saves import MemorySaves
    from fairlead.runtime.data.reader import Data
    from fairlead.runtime.elastic.steps import Steps
    from fairlead.runtime.parallelism.parallelize import Precision
    from fairlead.runtime.parallelism.probing import Probe
    from fairlead.runtime.parallelism.step import ParallelStep
    from fairlead.runtime.parallelism.tracing import Tracer

STOPPED_CODE = 128 + signal.SIGTERM
# Waits between tries of the last checkpoint, if the disk is full or the store does not answer.
LAST_TRIES_S: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 60.0)
MOST_SAID = 300
# Limit for a save in progress when the ranks change; it succeeds, or fails because of the lost rank.
SETTLE_WITHIN_S = 30.0
# If a whole run in pods is stopped, its first pod is told within this time; at most half of the grace is waited.
LEAVE_AFTER_S = 5.0
Batch = TypeVar("Batch")
_active: "Run | None" = None


class Stopped(SystemExit):
    """Ends the program after a stop notice, with exit code 143. Do not catch it.

    Attributes:
        step: Steps completed when the program stopped.
        saved: Whether a checkpoint of that step is complete.
    """

    def __init__(self, step: int, *, saved: bool) -> None:
        super().__init__(STOPPED_CODE)
        self.step = step
        self.saved = saved


def run(
    *,
    checkpoint_to: str | Path | None = None,
    checkpoint_from: str | Path | None = None,
    checkpoint_every_s: float | None = None,
    checkpoint_every_steps: int | None = None,
    checkpoint_keep: int | None = None,
) -> "Run":
    """Join the run that this process belongs to; use it as ``with fairlead.run() as run``.

    The checkpoint settings of the run's spec take precedence. The arguments apply where it has none, as under plain
    python.

    Args:
        checkpoint_to: Directory or URL for the checkpoints of this run alone. With None only the spec decides.
        checkpoint_from: Directory or URL of another run's checkpoints, from the newest of which a run without its own
        starts.
        checkpoint_every_s: Seconds between checkpoints, more than 0. Excludes ``checkpoint_every_steps``.
        checkpoint_every_steps: Steps between checkpoints, at least 1.
        checkpoint_keep: Number of complete checkpoints to keep, at least 1; the default is 3.

    Raises:
        Misuse: A value is invalid, or values contradict each other.
    """
    return Run(
        read_environment(
            os.environ,
            checkpoint_to=None if checkpoint_to is None else str(checkpoint_to),
            checkpoint_from=None if checkpoint_from is None else str(checkpoint_from),
            every_s=checkpoint_every_s,
            every_steps=checkpoint_every_steps,
            keep=checkpoint_keep,
        )
    )


class Run:
    """One rank's part in a run, created by ``fairlead.run()``. Its methods are for the thread that entered it.

    ``resume`` and ``checkpoint`` are collective: every rank must call them, at the same steps. ``progress`` is not.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._reporter = Reporter(
            rank=environment.rank, world_size=environment.world_size, directory=environment.pod_dir
        )
        self._entered = False
        self._stop_at: float | None = None
        self._stop_told = False
        self._restore_signals: list[Callable[[], object]] = []
        self._store: CheckpointStore | None = None
        self._content: Content | None = None
        self._saver: Saver | None = None
        self._memory: MemorySaves | None = None
        self._memory_fails: bool | None = None  # None before the first save into memory
        self._is_only_in_memory = False
        self._links = Links(environment)
        self._last_step: int | None = None
        self._saves_failed = 0
        self._may_pass = False
        self._is_ending = False
        self._next_try_s: float | None = None
        self._interval: SaveInterval | None = None
        self._in_background = False
        self._cadence = self._new_cadence(0)
        self._steps: dict[int, ParallelStep] = {}
        self._state: Mapping[str, object] = {}
        self._start = 0
        self._backend: str | None = None
        self._membership: Membership | None = None
        self._pod_ranks = range(0)
        self._has_loop = False
        self._probe = _new_probe() if environment.probed else None
        self._data = DataPositions()

    @property
    def rank(self) -> int:
        """Number of this process among all ranks of the run, from 0."""
        return self._environment.rank

    @property
    def world_size(self) -> int:
        """Number of ranks of the run."""
        return self._environment.world_size

    @property
    def local_rank(self) -> int:
        """Number of this process on its node, which is the number of its GPU."""
        return self._environment.local_rank

    @property
    def dir(self) -> Path:
        """A directory of this run that is kept across attempts; the current directory outside Fairlead."""
        return self._environment.run_dir

    @property
    def parallel(self) -> ParallelSplit:
        """The split of a step over the ranks, by the spec's ``parallel``; without it, data parallelism.

        Raises:
            Misuse: The split has another number of ranks, or has not been chosen yet.
        """
        return read_split(self._environment.parallel, self._environment.world_size)

    def data(self, name: str, url: str | None = None, *, mode: str | None = None, include: str | None = None) -> "Data":
        """Return a data set of the spec: its ``batches``, ``loader``, ``files`` and ``path``.

        Its position is part of the checkpoints of this run, so that training goes on at the very next sample, with any
        number of ranks.

        Args:
            name: Its name in the spec's ``data``.
            url: Path or URL where the spec has no such data, as under plain python.
            mode: For that, ``mount``, ``copy``, ``cache`` or ``stream``; by default mount for a path, cache for a URL.
            include: For that, a shell pattern for names of objects.

        Raises:
            Misuse: There is no such data, or ``resume`` was called before the first use of data that no spec names.
        """
        from fairlead.runtime.data.sources import data_of

        self._expect_entered()
        held = self._data.opened.get(name)
        if held is not None:
            return held
        if self._content is not None and not self._data.is_saved:
            raise Misuse(
                f"run.data({name!r}) after run.resume(), which restores where training was in the data; call it before"
            )
        data = data_of(os.environ, name, url, mode=mode, include=include, rank=self.rank, world_size=self.world_size)
        data.is_in_place = self._environment.members_dir is not None
        self._data.open(name, data)
        return data

    def parallelize(
        self,
        model: "torch.nn.Module",
        *,
        plan: ParallelPlan | None = None,
        device: str | None = None,
        precision: "Precision | None" = None,
    ) -> "torch.nn.Module":
        """Apply ``parallel`` to a model: DDP, FSDP2, tensor parallel layers, pipeline stages, recomputation, precision.

        Call it on every rank after ``init_process_group``, with the model on its device and the same weights on all
        ranks. Create the optimizer from the returned module, and compute steps with ``forward_backward``.

        Args:
            plan: The places at which the model can be divided, for models whose layer names are not known.
            device: The device type on which the ranks compute; by default ``cuda`` if available, otherwise ``cpu``.
            precision: ``fp32`` or ``bf16``; by default bf16 on GPUs and fp32 elsewhere.

        Raises:
            Misuse: The model has no layers or blocks that can be divided this way, or there is no process group.
        """
        from fairlead.runtime.parallelism.parallelize import parallelize
        from fairlead.runtime.parallelism.step import ParallelStep

        if device is None:
            import torch

            device = "cuda" if torch.cuda.is_available() else "cpu"
        tracer = self._tracer()
        if tracer is not None and precision is None:
            precision = "bf16"  # as on the GPUs that the trace stands for
        applied = parallelize(model, self.parallel, device, plan=plan, precision=precision, traced=tracer is not None)
        self._steps[id(applied.module)] = ParallelStep(applied, is_given=self._environment.parallel is not None)
        if tracer is not None:
            split = applied.split
            tracer.parallelized(applied.module, copies=split.data > 1 and split.shard == "none")
        return applied.module

    def _tracer(self) -> "Tracer | None":
        """Return the tracer of a program that `fairlead plan --verify` runs with fake tensors; None otherwise."""
        if not self._environment.traced:
            return None
        from fairlead.runtime.parallelism import tracing

        return tracing.tracer

    def forward_backward(
        self,
        model: "torch.nn.Module",
        inputs: "torch.Tensor | Mapping[str, torch.Tensor]",
        targets: "torch.Tensor | Mapping[str, torch.Tensor]",
        *,
        loss: "Callable[[torch.Tensor, Any], torch.Tensor]",
    ) -> "torch.Tensor":
        """Accumulate the gradients of a step under any split and return the mean loss over all replicas, on each rank.

        ``parallel`` determines micro-batches, pipeline schedules and when gradients are reduced. All ranks of a
        replica, ``parallel.replica_of(rank)``, need the same ``parallel.samples`` samples.

        Args:
            model: The module that ``parallelize`` returned.
            inputs: A tensor for the model's forward, or tensors by argument name; the first dimension is the samples.
            targets: The same for ``loss``.
            loss: Returns the mean loss of the model's output, or of its ``logits``, and the targets. Pass the same
                function in every step.

        Raises:
            Misuse: The model is not from ``parallelize``, or the number of samples does not fit the split.
        """
        tracer = self._tracer()
        if tracer is not None:
            tracer.step()
        if self._probe is not None:
            self._probed(self._probe, is_enough=self._probe.begins())
        return self._step_of(model).forward_backward(inputs, targets, loss)

    def clip_gradients(self, model: "torch.nn.Module", most: float) -> "torch.Tensor":
        """Scale gradients down to a norm over the whole model, across all ranks, and return the norm before.

        Raises:
            Misuse: The model is not from ``parallelize``.
        """
        return self._step_of(model).clip_gradients(most)

    def _probed(self, probe: "Probe", *, is_enough: bool) -> None:
        """Report that a probe of a split is running; end the program when enough steps are measured.

        Raises:
            Stopped: A stop notice arrived.
            SystemExit: Enough steps are measured.
        """
        if self.stop_requested:
            self._tell_stop()
            raise Stopped(0, saved=False)
        if probe.is_news:
            self._reporter.fact(probe_steps=probe.steps)
        if is_enough:
            self._tell_probe(probe)
            raise SystemExit(0)

    def _tell_probe(self, probe: "Probe") -> None:
        if self.rank == 0 and probe.step_s is not None:
            self._reporter.fact(probe_attempt=self.attempt, probe_step_s=probe.step_s)

    def _step_of(self, model: "torch.nn.Module") -> "ParallelStep":
        step = self._steps.get(id(model))
        if step is None:
            raise Misuse("this model is not from run.parallelize(); give the module that it returned")
        return step

    def init_process_group(self, backend: str | None = None) -> None:
        """Create torch.distributed's process group of all ranks, like ``torch.distributed.init_process_group``.

        With ``elastic: in_place`` use this method: a returning rank has a group of its own until ``run.steps`` takes it
        in, so that building the model before that does not wait for other ranks.

        Args:
            backend: By default ``nccl`` if there are GPUs and ``gloo`` otherwise.

        Raises:
            Misuse: There already is a process group.
        """
        import torch
        import torch.distributed as dist

        if dist.is_initialized():
            raise Misuse("torch.distributed has a process group already; call run.init_process_group() in its place")
        self._backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
        if self._comes_back() or "MASTER_ADDR" not in os.environ:
            dist.init_process_group(self._backend, store=dist.HashStore(), rank=0, world_size=1)
        else:
            dist.init_process_group(self._backend)

    def _comes_back(self) -> bool:
        """Return whether the other ranks are training already and this one, or its pod, was lost before."""
        directory = self._environment.members_dir
        return directory is not None and (self._environment.replacement > 0 or has_begun(str(directory)))

    def steps(self, total: int, *, batch: int, micro_batch: int | None = None) -> "Steps":
        """Iterate over the remaining steps: ``for step in run.steps(1000, batch=32)``, with ``with step:`` inside.

        The body processes ``step.samples``, or ``step.parts(model)``, of the batch, and applies the optimizer last.
        After each step a checkpoint is saved if one is due. With ``elastic: in_place``, the step in which a rank is
        killed is undone and computed again by the remaining ranks, with the same total number of samples; the rank
        joins them when it returns.

        Args:
            total: Steps of the whole training.
            batch: Samples of a step over all ranks, at least one for each rank.
            micro_batch: Most samples that a rank computes at a time, at least 1; by default all of its samples.

        Raises:
            Misuse: There are fewer samples than ranks, or ``resume`` or ``init_process_group`` was not called before.
        """
        from fairlead.runtime.elastic.steps import ElasticSteps, Steps

        self._expect_entered()
        if self._content is None:
            raise Misuse("run.steps() was called without run.resume(); give that the model and the optimizer first")
        total, batch = whole(total, "run.steps(total)"), whole(batch, "run.steps(batch=...)", least=1)
        if micro_batch is not None:
            micro_batch = whole(micro_batch, "run.steps(micro_batch=...)", least=1)
        host = _LoopHost(self)
        self._has_loop = True
        place, size = self.rank, self.world_size
        rest: dict[str, Any] = {"start": self._start, "total": total, "batch": batch, "micro_batch": micro_batch}
        directory = self._environment.members_dir
        if directory is None or not self._can_go_on_in_place():
            return Steps(place=place, num_members=size, host=host, **rest)
        from fairlead.runtime.elastic.group import EpochGroup

        comes_back, token = self._comes_back(), f"{os.getpid()}-{time.monotonic_ns()}"
        board = open_board(
            directory, self._environment.members_at, place, token, self._environment.replacement,
            admission=partial(
                run_key.token, self._environment.key_file, self._environment.run_uid, self.attempt, MEMBERS
            ),
        )  # fmt: skip
        self._membership = Membership(board, token, place, size)
        self._pod_ranks = range(place - self.local_rank, place - self.local_rank + self._environment.local_size)
        if comes_back:
            self._reporter.fact(in_place_attempt=self.attempt)
        return ElasticSteps(
            membership=self._membership, group=EpochGroup(self._membership), rank=place, world_size=size,
            state=self._state, has_state=not comes_back, host=host, **rest,
        )  # fmt: skip

    def _can_go_on_in_place(self) -> bool:
        """Return whether the remaining ranks have all of the state; if not, an event has the reason."""
        import torch

        from fairlead.runtime.checkpoint.whole_state import is_whole

        if self._backend is None:
            raise Misuse("`elastic: in_place` needs run.init_process_group() in place of torch.distributed's own")
        modules = [value for value in self._state.values() if isinstance(value, torch.nn.Module)]
        if self._backend != "gloo":
            why = f"a collective of {self._backend} that waits for a lost rank is not ended from outside"
        elif not self._state:
            why = "its state is in files that the program itself writes"
        elif not all(map(is_whole, modules)):
            why = "parameters are divided among ranks, and a lost rank takes its part with it"
        else:
            return True
        self._note("InPlaceUnavailable", f"A rank that is lost restarts the run from its checkpoint: {why}.", warn=True)
        return False

    @property
    def attempt(self) -> int:
        """Number of earlier starts of the run: 0 the first time."""
        return self._environment.attempt

    @property
    def stop_requested(self) -> bool:
        """True once this rank received a stop notice; the next ``checkpoint`` agreed on by all ranks ends the
        program."""
        return self._stop_at is not None

    def resume(self, *, load: Callable[[Path], object] | None = None, **state: object) -> int:
        """Load the newest usable checkpoint in place and return the number of completed steps, 0 the first time.

        Call it once, after the objects are built and wrapped (DDP, FSDP2) and after ``init_process_group``.
        ``checkpoint`` saves the same objects. Random generators are restored too, so that training continues as if it
        had not been interrupted.

        Args:
            load: For programs without such objects: reads this rank's directory, which ``checkpoint(save=...)`` filled.
                In an elastic gang, new ranks read that of rank 0.
            **state: Objects by name. Modules, and optimizers of their parameters, are saved once for all ranks and can
                be loaded into any number of ranks. Dictionaries and other objects with ``state_dict`` and
                ``load_state_dict`` (schedulers, data loaders) are saved by each rank; new ranks load those of rank 0.
                None is skipped.

        Raises:
            Misuse: It is called twice, without anything to save, or with an object that cannot be saved.
            StoreUnavailable: The checkpoint storage cannot be read.
            CheckpointMismatch: No undamaged checkpoint fits the program.
        """
        # A run without its own checkpoint starts from another run's, if its spec names one.
        self._expect_entered()
        if self._content is not None:
            raise Misuse("run.resume() was called twice; call it once, with everything that belongs to the state")
        if (load is None) == (not state):
            raise Misuse("give run.resume() the objects to restore, as in resume(model=m), or load=, one of the two")
        self._data.is_saved = bool(self._data.opened) or "FAIRLEAD_DATA" in os.environ
        if self._data.is_saved:
            if load is None:
                state = {**state, DATA: self._data}
            else:
                load = self._data.loading(load)
        self._content = self._new_content(load, state, self._links.saving)
        self._state = state
        if self._environment.traced or self._probe is not None:
            return 0
        self._watch_own_time(state)
        if self._comes_back():
            return 0
        place, origin = self._environment.checkpoint_to, self._environment.checkpoint_from
        if place is None:
            return 0 if origin is None else self._begin_from(origin, self._content)
        self._store = open_store(place, scratch=self._environment.pod_dir)
        self._links.agreement()
        memory_source: CheckpointSource | None = None
        if self._environment.memory_dir is not None:
            # Imported here because few runs keep checkpoints in memory.
            from fairlead.runtime.checkpoint.memory import open_memory

            memory, memory_source = open_memory(
                self._environment.memory_dir,
                channel=self._links.saving(),
                node=self._environment.node,
                local_rank=self.local_rank,
                host=self._environment.master_addr,
            )
        restored = restore(
            store=self._store,
            content=self._content,
            channel=self._links.saving(),
            node=self._environment.node,
            local_rank=self.local_rank,
            reject=self._rejected,
            memory=memory_source,
        )
        if memory_source is not None:
            from fairlead.runtime.checkpoint.memory_saves import MemorySaves

            self._memory = MemorySaves(
                memory=memory,
                content=self._new_content(load, state, self._links.memory),
                channel=self._links.memory(),
                environment=self._environment,
                step=restored.step,
                report=self._saved_in_memory,
            )
        self._saver = self._new_saver(self._store, self._content)
        self._resumed(self._saver, restored)
        self._start = restored.step
        if restored.saved_by == 0 and origin is not None:
            return self._begin_from(origin, self._content)
        return restored.step

    def _watch_own_time(self, state: Mapping[str, object]) -> None:
        """Measure what this rank computes by itself, if others compute beside it."""
        environment = self._environment
        if environment.pod_dir is None or environment.world_size < 2:
            return
        if environment.parallel is not None and self.parallel.pipeline > 1:
            return  # its stages wait for one another within a step
        torch = sys.modules.get("torch")
        if torch is not None:
            self._reporter.own_time.watch(value for value in state.values() if isinstance(value, torch.nn.Module))

    def _new_content(
        self, load: Callable[[Path], object] | None, state: Mapping[str, object], channel: "Callable[[], Channel]"
    ) -> Content:
        if load is not None:
            return Files(self.rank, self.world_size, load, elastic=self._environment.elastic)
        return ProgramObjects(self.rank, self.world_size, state, channel, trust=self._environment.trust)

    def _new_saver(self, store: CheckpointStore, content: Content) -> Saver:
        return Saver(
            local_rank=self.local_rank,
            store=store,
            content=content,
            channel=self._links.saving(),
            run=self._environment.run_uid,
            attempt=self.attempt,
            keep=self._environment.keep,
            report=self._saved,
        )

    def _begin_from(self, origin: str, content: Content) -> int:
        """Load the newest usable checkpoint of another run and return its step.

        Raises:
            StoreUnavailable: The storage cannot be read, or has no usable checkpoint.
        """
        store = open_store(origin, scratch=self._environment.pod_dir)
        self._links.agreement()
        restored = restore(
            store=store,
            content=content,
            channel=self._links.saving(),
            node=self._environment.node,
            local_rank=self.local_rank,
            reject=self._rejected,
            advice="Change the program, or `checkpoint.from`",
        )
        if restored.saved_by == 0:
            # Starting from scratch would not be the training that was requested.
            raise StoreUnavailable(f"checkpoint.from: there is no sound checkpoint in {store.place}")
        self._cadence = self._new_cadence(restored.step)
        self._start = restored.step
        self._reporter.fact(step=restored.step, resumed_step=restored.step)
        self._note("Resumed", f"Began after step {restored.step} of {store.place}.")
        return restored.step

    def progress(
        self,
        step: int,
        *,
        total: int | None = None,
        loss: object = None,
        epoch: float | None = None,
        samples: int | None = None,
        tokens: int | None = None,
        **metrics: object,
    ) -> None:
        """Report progress. This is cheap: it is written at most a few times a second.

        Whole numbers may be ints, numpy integers or integer tensors; a float is refused even if it is whole.

        Args:
            step: Completed steps, at least 0.
            total: Steps of the whole training, at least 1.
            loss: A number or a one-element tensor, which is read from the device only when it is written.
            epoch: Passes over the data, at least 0; fractions are allowed.
            samples: Samples that this rank processed in this step, at least 0; assumed to be the same on all ranks.
            tokens: The same in tokens. Excludes ``samples``.
            **metrics: Further numbers by name, like ``loss``; None if there is no value in this step.

        Raises:
            Misuse: A value is not such a number, or both ``samples`` and ``tokens`` are given.
            LossNotFinite: The loss is NaN or infinite, unless the spec has ``terminate_on_nan: false``. For a tensor
                this is known only when it is written.
        """
        self._expect_entered()
        if self._environment.traced:
            return
        step = whole(step, "run.progress(step)")
        if total is not None:
            total = whole(total, "run.progress(total=...)", least=1)
        if epoch is not None:
            epoch = passes(epoch)
        if samples is not None:
            samples = whole(samples, "run.progress(samples=...)")
        if tokens is not None:
            tokens = whole(tokens, "run.progress(tokens=...)")
            if samples is not None:
                raise Misuse("run.progress() was given both samples= and tokens=; give the one to measure the speed by")
        if loss is not None:
            check_number("loss", loss)
        for name, value in metrics.items():
            check_number(name, value)
        if self._probe is not None:
            self._probed(self._probe, is_enough=self._probe.progressed())
            return
        self._reporter.progress(
            step, total=total, loss=loss, epoch=epoch, samples=samples, tokens=tokens, metrics=metrics
        )
        self._refuse_bad_loss()

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield batches from a loader and measure how long the program waits for them.

        Use it as ``for batch in run.batches(loader)``. The measurement shows whether data loading leaves GPUs idle.

        Args:
            loader: Any iterable, such as a ``DataLoader``; its items are passed on unchanged.
        """
        self._expect_entered()
        source = iter(loader)
        while True:
            began = time.monotonic()
            try:
                batch = next(source)
            except StopIteration:
                return
            finally:
                self._reporter.spend("loading_s", time.monotonic() - began)
            yield batch

    def checkpoint(self, step: int, *, save: Callable[[Path], object] | None = None, force: bool = False) -> None:
        """Save if a checkpoint is due or a stop notice arrived. Call it after every step on every rank; it is cheap.

        A save copies the state and continues in the background. It begins early, by the time that the last one took,
        and training waits for it once the newest complete checkpoint is an interval old, so that a kill costs at most
        the interval. If a save fails, training continues, and the next one is tried when it is due. After a stop notice
        the state of this step is saved at once, on all ranks, and the program ends.

        Args:
            step: Completed steps, a whole number as for ``progress``.
            save: For ``resume(load=...)``: fills a directory of this rank; called only when a checkpoint is saved.
            force: Save now, even if no checkpoint is due. All ranks must pass the same value.

        Raises:
            Stopped: A stop notice was handled. It is a SystemExit with code 143; do not catch it.
            Misuse: ``resume`` was not called before, or took the other form, or the step is not a whole number.
            AgreementFailed: A rank is gone, or at another step.
        """
        self._expect_entered()
        if self._environment.traced or self._probe is not None:
            return
        if self._last_step is None:
            self._reporter.fact(saves_failed=0)
            if self._environment.members_dir is not None and not self._has_loop:
                why = "its steps are not those of run.steps()"
                message = f"A rank that is lost restarts the run from its checkpoint: {why}."
                self._note("InPlaceUnavailable", message, warn=True)
        if isinstance(self._content, Files):
            if save is None:
                raise Misuse("run.resume() was given load=; give run.checkpoint() the matching save=")
            self._content.save = self._data.saving(save) if self._data.is_saved else save
        elif save is not None or self._content is None:
            raise Misuse("run.checkpoint() was called without run.resume() of the same form; call resume(...) first")
        self._last_step = step = whole(step, "run.checkpoint(step)")
        memory = self._memory
        for writer in (self._saver, memory):
            gone = None if writer is None else writer.gone
            if gone is not None:
                raise gone
        agreement = self._links.agreement()
        if not agreement.comes_now() and not force and not (self._saver and self._cadence.at_limit(step)):
            return
        saver, chief = self._saver, self.rank == 0
        verdict = agreement.agree(
            step,
            stop=self.stop_requested and not self._leaves_alone,
            due=force or (chief and (self._is_only_in_memory or self._cadence.due(step))),
            busy=saver is not None and saver.busy,
            over=chief and self._cadence.exceeds_interval(step, steps_to_check=agreement.gap),
            memory_due=chief and memory is not None and memory.due(step),
            memory_busy=memory is not None and memory.busy,
        )
        if verdict.stop:
            self._stop(step)
        if saver is None:
            return
        may_begin = not verdict.busy or verdict.over or force
        if not verdict.busy:
            self._cadence.agree_idle()
        elif may_begin:
            self._wait(saver)
        # A save that training waited for is new enough; otherwise training continues only after this step is saved.
        must = verdict.over and not verdict.busy
        if may_begin and saver.newest != step and (force or must or (verdict.due and not verdict.over)):
            self._save(step, background=not must)
        elif memory is not None and verdict.memory_due and not verdict.memory_busy:
            self._save_in_memory(memory, step)
        if saver.gone is not None:
            # Without the other ranks no step could be saved any more; the gang restarts from the newest checkpoint.
            raise saver.gone

    def __enter__(self) -> "Run":
        global _active
        if _active is not None:
            raise Misuse("fairlead.run() is already open in this process; use the one run for everything")
        _active = self
        self._entered = True
        self._install_signals()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        global _active
        try:
            self._finish(error)
            if error is None and self._membership is not None and self.rank == 0:
                self._membership.finish()
        finally:
            _active = None
            self._entered = False
            self._reporter.flush()
            if self._environment.pod_dir is not None:
                with contextlib.suppress(OSError):  # on a full disk, where it is not known what the run needs
                    gpu_peak.record(str(self._environment.pod_dir), self.rank)
            self._data.close()
            self._links.close()
            for undo in reversed(self._restore_signals):
                undo()

    def _refuse_bad_loss(self) -> None:
        """End the program if its loss is not finite, so that no state computed from it is saved.

        Raises:
            LossNotFinite: The loss is not finite, and the run has not set ``terminate_on_nan: false``.
        """
        bad = self._reporter.bad_loss
        if bad is not None and self._environment.terminate_on_nan:
            step, loss = bad
            raise LossNotFinite(f"the loss is not finite at step {step}: {loss}")

    def _finish(self, error: BaseException | None) -> None:
        if error is None and self._probe is not None:
            self._tell_probe(self._probe)
        if error is None:
            self._reporter.look()
            try:
                self._refuse_bad_loss()
            except LossNotFinite as bad:
                self._finish(bad)
                raise
        if self._saver is None:
            return
        if error is None:
            self._saver.wait()
            last = self._start if self._last_step is None and self._is_only_in_memory else self._last_step
            if last is not None and self._saver.newest != last:
                self._save_last(self._saver, last)
            if self._memory is not None and self._saver.newest == last:
                self._release_memory(self._memory, self._environment.grace_s)
        else:
            # The save in progress is of a step before the error. Peers may be gone, so the wait is limited.
            self._saver.wait(min(self._environment.grace_s, 30.0))

    def _save_last(self, saver: Saver, step: int) -> None:
        """Save the final state; while a full disk or an outage prevents it, wait and try again.

        All ranks make the same tries, because all know the outcome of each; only a stop notice ends them early.
        """
        self._is_ending = True
        for wait_s in (*LAST_TRIES_S, None):
            self._next_try_s = wait_s
            self._save(step, background=False)
            if saver.newest == step or saver.gone is not None or not self._may_pass or wait_s is None:
                break
            end = time.monotonic() + wait_s
            while not self.stop_requested and (left := end - time.monotonic()) > 0:
                time.sleep(min(left, 0.2))
            if self.stop_requested:
                break
        self._next_try_s = None

    def _expect_entered(self) -> None:
        if not self._entered:
            raise Misuse("the run is not open; use it inside `with fairlead.run() as run:`")

    def _new_cadence(self, step: int) -> Cadence:
        environment = self._environment
        return Cadence(
            every_s=environment.every_s, every_steps=environment.every_steps, step=step, interval=self._interval
        )

    def _wait(self, saver: Saver) -> None:
        began = time.monotonic()
        saver.wait()
        self._waited(time.monotonic() - began)
        self._cadence.agree_idle()

    def _waited(self, seconds: float) -> None:
        """Count time for which training was paused for a checkpoint."""
        self._cadence.add_wait(seconds)
        self._reporter.spend("saving_s", seconds)

    def _save(self, step: int, *, background: bool) -> None:
        assert self._saver is not None
        self._reporter.look()
        self._refuse_bad_loss()
        self._in_background = background
        if self._interval is not None:
            self._saver.beside = self._interval.measurements(stopped=self.stop_requested)
        self._cadence.begin(step)
        self._is_only_in_memory = False
        if self._memory is not None:
            self._memory.began(step)
        began = time.monotonic()
        self._saver.save(step, background=background)
        self._waited(time.monotonic() - began)
        if not background:
            self._cadence.agree_idle()

    def _save_in_memory(self, memory: "MemorySaves", step: int) -> None:
        self._reporter.look()
        self._refuse_bad_loss()
        began = time.monotonic()
        memory.save(step, self._content)
        self._waited(time.monotonic() - began)

    def _saved_in_memory(self, saved: Saved) -> None:
        """Report a save into memory; as there are many, only the first one and the first failure are events."""
        if saved.problem is not None:
            if not self._memory_fails:
                message = f"Step {saved.step} could not be saved in memory: {saved.problem}; the training continues."
                self._note("MemoryCheckpointFailed", message, warn=True)
            self._memory_fails = True
            return
        if self._memory_fails is not False:
            self._note(
                "MemoryCheckpointSaved",
                f"Step {saved.step} ({saved.size / 1e6:.1f} MB) is held in memory, after {saved.seconds:.1f} s; the "
                f"training waited {saved.blocked_s * 1000:.0f} ms. Later ones appear in `fairlead status` only.",
            )
        self._memory_fails = False
        self._reporter.fact(memory_step=saved.step)

    def _release_memory(self, memory: "MemorySaves", timeout_s: float) -> None:
        """Free the nodes' memory, as the disk has a checkpoint that is as new."""
        memory.release(timeout_s)
        self._reporter.fact(memory_step=None)

    def _stop(self, step: int) -> None:
        self._tell_stop()
        saver = self._saver
        if saver is None:
            self._note("StopNotice", f"Stopped after step {step} without a checkpoint: no place was given for one.")
            raise Stopped(step, saved=False)
        saver.wait()
        if saver.newest != step:
            self._save(step, background=False)
        saved = saver.newest == step
        if saved:
            self._reporter.fact(stopped_step=step)
            if self._memory is not None:
                self._release_memory(self._memory, self._environment.grace_s / 2)
        raise Stopped(step, saved=saved)

    @property
    def _leaves_alone(self) -> bool:
        """Return whether a stop notice of this rank stops no other rank.

        A pod may lose its node while the others go on in place. When the whole run stops, the pod of the first member
        is told too, and its ranks stop all.
        """
        members = () if self._membership is None else self._membership.epoch.members
        return bool(members) and members[0] not in self._pod_ranks

    def _leave(self, step: int) -> None:
        """End the program, between two steps, if only its pod is to stop.

        Raises:
            Stopped: The pod of the first member was not told to stop soon after.
        """
        if self._stop_at is None or not self._leaves_alone:
            return
        if time.monotonic() - self._stop_at >= min(LEAVE_AFTER_S, self._environment.grace_s / 2):
            self._tell_stop()
            raise Stopped(step, saved=False)

    def _tell_stop(self) -> None:
        if self._stop_at is not None and not self._stop_told:
            self._stop_told = True
            what = "this pod leaves while the others continue" if self._leaves_alone else "the state is saved"
            self._reporter.event("StopNotice", f"A stop notice came; {what}, and the program ends.")

    def _note(self, kind: str, message: str, *, warn: bool = False) -> None:
        """Record an event that is the same on all ranks once, from rank 0."""
        if self.rank == 0:
            self._reporter.event(kind, message, warn=warn)

    def _saved(self, saved: Saved) -> None:
        self._cadence.end(seconds=saved.seconds, blocked_s=saved.blocked_s)
        if saved.problem is not None:
            self._failed(saved, saved.problem)
            return
        self._saves_failed = 0
        if self._interval is not None and self._in_background:
            self._interval.saved(blocked_s=saved.blocked_s, seconds=saved.seconds)
            self._tell_interval(self._interval)
        self._reporter.fact(
            checkpoint_step=saved.step, checkpoint_at=time.time(),
            saves_failed=0, save_failed_step=None, save_problem=None,
        )  # fmt: skip
        self._note(
            "CheckpointSaved",
            f"Saved step {saved.step} ({saved.size / 1e6:.1f} MB) in {saved.seconds:.1f} s; "
            f"the training waited {saved.blocked_s * 1000:.0f} ms.",
        )
        if saved.leftover is not None:
            self._note("CleanupFailed", f"Old checkpoints could not be removed: {saved.leftover}.", warn=True)

    def _tell_interval(self, interval: SaveInterval) -> None:
        if interval.is_measured:
            self._reporter.fact(checkpoint_interval_s=interval.seconds, checkpoint_interval_why=interval.why())

    def _failed(self, saved: Saved, problem: str) -> None:
        self._saves_failed += 1
        self._may_pass = saved.is_passing
        place = "" if self._store is None or self._store.place in problem else f" in {self._store.place}"
        self._reporter.fact(
            saves_failed=self._saves_failed, save_failed_step=saved.step, save_problem=f"{problem}{place}"[:MOST_SAID]
        )
        if self._next_try_s is not None and saved.is_passing:
            then = f"it is tried again in {self._next_try_s:g} s"
        elif self.stop_requested or self._is_ending:
            then = "the program ends without it"
        else:
            then = "the training continues"
        self._note(
            "CheckpointFailed",
            f"The checkpoint of step {saved.step} could not be saved{place}: {problem}; {then}.",
            warn=True,
        )

    def _rejected(self, rejected: Rejected) -> None:
        self._note(
            "CheckpointDamaged",
            f"The checkpoint of step {rejected.step}{' in memory' if rejected.in_memory else ''} cannot be used: "
            f"{rejected.reason}; trying the one before.",
            warn=True,
        )

    def _resumed(self, saver: Saver, restored: Restored) -> None:
        saver.unusable.update(item.step for item in restored.rejected if not item.in_memory)
        if self._environment.every_auto:
            starts = self.attempt - restored.attempt
            self._interval = continued(
                restored.interval,
                ranks=self.world_size,
                starts=starts,
                node_failures_per_day=self._environment.node_failures_per_day,
            )
            self._tell_interval(self._interval)
        self._cadence = self._new_cadence(restored.step)
        self._tell_lost(restored)
        if restored.saved_by == 0:
            return
        change = f" saved by {restored.saved_by} ranks" if restored.saved_by != self.world_size else ""
        if restored.in_memory:
            # The next save goes to disk, for which `checkpoint.every` holds and which has only an older checkpoint.
            self._is_only_in_memory = True
            self._reporter.fact(step=restored.step, resumed_step=restored.step, memory_step=restored.step)
            self._note("Resumed", f"Resumed after step {restored.step}{change}, which was held in memory.")
            return
        saver.newest = restored.step
        self._reporter.fact(step=restored.step, resumed_step=restored.step, checkpoint_step=restored.step)
        self._note("Resumed", f"Resumed after step {restored.step}{change}.")

    def _tell_lost(self, restored: Restored) -> None:
        """Tell that checkpoints which were saved are not there, or that another run has saved the one loaded."""
        known, place = self._environment.checkpoint_step, self._environment.checkpoint_to
        seen = max([restored.step, *(item.step for item in restored.rejected)])
        if known is not None and seen < known:
            instead = f"after step {restored.step}" if restored.saved_by else "from the beginning"
            self._note(
                "CheckpointsGone",
                f"The checkpoint of step {known} is gone: there is none in {place} "
                f"{'newer than that of step ' + str(seen) if seen else 'at all'}. Training goes on {instead}. "
                "If that is not meant, stop the run, bring the files back (is the disk mounted?) and resume it.",
                warn=True,
            )
        if restored.run and self._environment.run_uid and restored.run != self._environment.run_uid:
            self._note(
                "ForeignCheckpoint",
                f"The checkpoint of step {restored.step} in {place} was saved by another run, {restored.run}.",
                warn=True,
            )

    def _install_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            before = signal.signal(signal.SIGTERM, self._stop_notice)
            self._restore_signals.append(lambda: signal.signal(signal.SIGTERM, before or signal.SIG_DFL))
            _Forks(self, before or signal.SIG_DFL).register()
        # The hook has not registered it if the command sets its own PYTHONPATH or ignores it.
        with contextlib.suppress(OSError):
            fairlead_stackdump.register()

    def _stop_notice(self, number: int, frame: FrameType | None) -> None:
        # Nothing more: the handler may interrupt a report that holds its lock.
        if self._stop_at is None:
            self._stop_at = time.monotonic()


class _Forks:
    """Gives SIGTERM the handler in a forked process that it had before the run, unless the program has set its own.

    A worker is no rank: `terminate()` ends it, as it would without Fairlead. SIGTERM is blocked over a fork, because
    one that arrives before the handler is exchanged would be lost.
    """

    def __init__(self, run: Run, before: Any) -> None:
        self._run = weakref.ref(run)
        self._before = before
        self._masks = threading.local()

    def register(self) -> None:
        os.register_at_fork(
            before=self._hold, after_in_parent=self._release, after_in_child=partial(self._release, in_child=True)
        )

    def _hold(self) -> None:
        run = self._run()
        self._masks.old = None
        if run is not None and signal.getsignal(signal.SIGTERM) == run._stop_notice:
            self._masks.old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _release(self, *, in_child: bool = False) -> None:
        if self._masks.old is None:
            return
        if in_child:
            signal.signal(signal.SIGTERM, self._before)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.old)


def _new_probe() -> "Probe":
    return Probe()


class _LoopHost:
    """Connects the loop of ``run.steps`` to its run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.trust = run._environment.trust

    def look(self) -> None:
        """Raise Stopped if a stop notice arrived."""
        if self._run.stop_requested:
            self._run._tell_stop()
            raise Stopped(self._run._last_step or 0, saved=False)

    def settle(self) -> None:
        """Wait for a save in progress, which fails at once if a rank is gone, and close the channels."""
        if self._run._saver is not None:
            self._run._saver.wait(SETTLE_WITHIN_S)
        self._run._links.close()

    def reformed(self, place: int, num_members: int, step: int) -> None:
        """Open channels to the other ranks and continue saving with them; collective."""
        run = self._run
        run._environment = replace(run._environment, rank=place, world_size=num_members)
        run._links = Links(run._environment)
        run._links.agreement()
        newest = max(run._links.saving().gather(-1 if run._saver is None else run._saver.newest or -1))
        place_of_all = run._environment.checkpoint_to
        run._content = ProgramObjects(place, num_members, run._state, run._links.saving, trust=run._environment.trust)
        if place_of_all is not None:
            run._store = run._store or open_store(place_of_all, scratch=run._environment.pod_dir)
            unusable = set() if run._saver is None else run._saver.unusable
            run._saver = run._new_saver(run._store, run._content)
            run._saver.unusable = unusable
            run._saver.newest = None if newest < 0 else newest
        run._cadence = run._new_cadence(max(newest, 0))
        run._reporter.fact(in_place_attempt=run.attempt)

    def tell(self, kind: str, message: str) -> None:
        """Record an event; a lost rank is also printed on stderr."""
        self._run._reporter.event(kind, message, warn=kind == "RankLost")

    def checkpoint(self, step: int) -> None:
        """Save if a checkpoint is due."""
        self._run.checkpoint(step)
        self._run._leave(step)
