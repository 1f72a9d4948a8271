"""Has everything in memory that a save needs of PyTorch, before one is due: to import it takes seconds of a processor.

A thread imports beside the training, and makes one save of next to nothing into a temporary directory, which imports
what PyTorch leaves for the first call. It draws no random numbers and talks to nobody. In a forked rank all is there.
"""

import sys
import tempfile
import threading

# Where they are in memory, as in a forked rank, no thread is needed: what is left takes milliseconds.
_NEEDED = ("torch._dynamo", "torch.distributed.checkpoint.state_dict")


class Warming:
    """One thread that ends when a save would import next to nothing any more; none where there is nothing to import."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        if "torch" in sys.modules and not all(name in sys.modules for name in _NEEDED):
            # A daemon: a program that is done does not wait for what it did not need.
            self._thread = threading.Thread(target=_try, name="fairlead-warming", daemon=True)
            self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether a save needs not wait any more."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> None:
        """Wait until a save would import nothing any more."""
        if self._thread is not None:
            self._thread.join()


def _try() -> None:
    try:
        warm()
    except Exception as error:  # noqa: BLE001 (a save imports by itself what is missing, or fails with the reason)
        print(f"fairlead: what a checkpoint needs was not imported ahead: {error}", file=sys.stderr)


def warm() -> None:
    """Import, and make the calls that import more."""
    import torch
    import torch._dynamo  # a state dict's first call imports it, with garbage collection held off meanwhile
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    from fairlead.runtime.checkpoint import tensors

    tensors.quiet()
    module = torch.nn.Module()
    module.register_buffer("nothing", torch.zeros(1))
    state, _ = get_state_dict(module, ())
    with tempfile.TemporaryDirectory(prefix="fairlead-warming-") as directory:
        writer = dcp.FileSystemWriter(directory, sync_files=False)
        dcp.save(dict(state), storage_writer=writer, no_dist=True)
