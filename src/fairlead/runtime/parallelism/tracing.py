"""Runs a training program with fake tensors, as one rank of many, and counts the memory of its first steps.

    python -m fairlead.runtime.parallelism.tracing RESULT PROGRAM [ARGUMENT...]

Nothing is allocated, computed or sent: tensors only have shapes (``FakeTensorMode``), and the process group is torch's
fake one. The program ends when its third step begins, since optimizers create their states in the first.
``fairlead.run()`` imports this module only in a program started this way.

See decision 58.
"""

import contextlib
import json
import runpy
import sys
import traceback
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode

_ShardingPropagator: Any = ShardingPropagator
STEPS = 2
CANNOT = 4


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that are alive, and their maximum."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch has no types here
        self.now = 0
        self.most = 0
        self._sizes: dict[int, int] = {}
        self._watched: dict[int, Any] = {}
        self._resize = torch.UntypedStorage.resize_
        self._shape = _ShardingPropagator._propagate_tensor_meta_non_cached
        self._is_paused = False

    def watch(self, tensor: torch.Tensor) -> None:
        """Count a tensor until it is freed."""
        local: Any = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        storage = local.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = 0
            self._watched[key] = weakref.finalize(storage, self._gone, key)
        self._size(key, storage.nbytes())

    def _size(self, key: int, size: int) -> None:
        self.now += size - self._sizes[key]
        self._sizes[key] = size
        self.most = max(self.most, self.now)

    def _gone(self, key: int) -> None:
        self.now -= self._sizes.pop(key)
        del self._watched[key]

    def __enter__(self) -> "LiveBytes":
        # FSDP frees and gathers parameters by resizing their storage, which no dispatch shows.
        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = self._resize(storage, size)
            if storage._cdata in self._sizes:
                self._size(storage._cdata, storage.nbytes())
            return result

        # DTensor runs each operator on whole tensors, without memory, to determine the shape of its output.
        def shape(*args: Any) -> Any:
            with self.paused():
                return self._shape(*args)

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign,assignment] # as torch's own MemTracker does
        _ShardingPropagator._propagate_tensor_meta_non_cached = shape
        super().__enter__()  # type: ignore[no-untyped-call] # torch has no types here
        return self

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)  # type: ignore[no-untyped-call] # torch has no types here
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign] # restored
        _ShardingPropagator._propagate_tensor_meta_non_cached = self._shape
        for watched in self._watched.values():
            watched.detach()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the counting inside the block."""
        was, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = was

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._is_paused:
            return func(*args, **(kwargs or {}))
        if any(issubclass(kind, torch.distributed.tensor.DTensor) for kind in types):
            return NotImplemented
        if func is torch.ops._c10d_functional.wait_tensor.default:
            made = args[0]  # a fake result would be another tensor
        else:
            made = func(*args, **(kwargs or {}))
        for leaf in torch.utils._pytree.tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self.watch(leaf)
        return made


class Tracer:
    """Follows the steps of one program."""

    def __init__(self, result: Path) -> None:
        self._result = result
        self.live = LiveBytes()
        self._module: torch.nn.Module | None = None
        self._begun = 0
        self._buckets: list[torch.Tensor] = []

    def parallelized(self, module: torch.nn.Module, *, copies: bool) -> None:
        """Begin to count, including the tensors that the model already has.

        Args:
            copies: Whether replicas are whole copies, for which DDP keeps buckets of the size of all gradients.
        """
        if self._module is not None:
            return
        self._module = module
        _positions_are_the_models_own()
        self._buckets = [torch.empty_like(item) for item in module.parameters()] if copies else []
        for item in (*module.parameters(), *module.buffers(), *self._buckets):
            self.live.watch(item)
        self.live.__enter__()

    def step(self) -> None:
        """Record that a step begins; end the program once enough steps are complete."""
        if self._begun == STEPS:
            self.finish()
            raise SystemExit(0)
        self._begun += 1

    def finish(self) -> None:
        """Write the result."""
        if self._module is None or not self._begun:
            raise SystemExit(
                "fairlead: the program ended without a step; it has to call run.parallelize() and "
                "run.forward_backward()"
            )
        self.live.__exit__(None, None, None)
        parameters = sum(_local_bytes(item) for item in self._module.parameters())
        gradients = sum(_local_bytes(item.grad) for item in self._module.parameters() if item.grad is not None)
        self._result.write_text(
            json.dumps(
                {
                    "peak_bytes": self.live.most,
                    "parameters_bytes": parameters,
                    # The memory between steps is that of optimizer states, except for tensors that the program itself
                    # holds.
                    "optimizer_bytes": self.live.now - parameters - gradients - sum(map(_local_bytes, self._buckets)),
                    "steps": self._begun,
                }
            )
        )


def _make_meshes_for_real() -> None:
    """Make the tensors in which meshes store rank numbers real, because their values are read."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.distributed.device_mesh import DeviceMesh

    def for_real(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with unset_fake_temporarily():
                return function(*args, **kwargs)

        return call

    meshes: Any = DeviceMesh
    meshes.__init__ = for_real(meshes.__init__)
    if hasattr(meshes, "_concatenate"):  # of torch 2.10 and later
        meshes._concatenate = staticmethod(for_real(meshes._concatenate))


def _pass_over_values() -> None:
    """Replace library functions that read the values of tensors, which fake tensors do not have."""
    # It draws values until all lie within bounds; it allocates no memory.
    inits: Any = torch.nn.init
    if hasattr(inits, "_no_grad_trunc_normal_"):
        inits._no_grad_trunc_normal_ = lambda tensor, *_, **__: tensor


def _positions_are_the_models_own() -> None:
    """Make Transformers treat sequences as not packed, as it does when positions have values.

    It cannot check this for fake tensors, and would create a mask for each layer that a real run does not have.
    """
    masks: Any = sys.modules.get("transformers.masking_utils")
    if hasattr(masks, "find_packed_sequence_indices"):
        masks.find_packed_sequence_indices = lambda *_, **__: None


def _local_bytes(tensor: Any) -> int:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    size: int = local.numel() * local.element_size()
    return size


tracer: Tracer | None = None


def main(argv: list[str]) -> int:
    """Trace the program and return its exit code."""
    global tracer
    # Under `-m` this module object differs from the one that `fairlead.run()` would import.
    from fairlead.runtime.parallelism import tracing

    tracing.tracer = tracer = Tracer(Path(argv[0]))
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    begin = dist.init_process_group

    def fake(*_: Any, **__: Any) -> None:
        import os

        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        begin("fake", store=FakeStore(), rank=rank, world_size=size)

    dist.init_process_group = fake
    _make_meshes_for_real()
    _pass_over_values()
    sys.argv = argv[1:]
    sys.path[0] = str(Path(argv[1]).resolve().parent)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            runpy.run_path(argv[1], run_name="__main__")
            tracer.finish()
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise
    except Exception as error:  # noqa: BLE001 - a program may raise anything
        traceback.print_exc()
        print(
            f"fairlead: the program does not go through with fake tensors: {type(error).__name__}: {error}",
            file=sys.stderr,
        )
        return CANNOT
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
