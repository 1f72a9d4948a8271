"""The channels of one rank to the others, for collective decisions and collective saves."""

import sys
from collections.abc import Sequence
from typing import Any

from fairlead.runtime.agreement import Agreement
from fairlead.runtime.channels import Alone, Channel, Gloo, open_stars
from fairlead.runtime.environment import Environment
from fairlead.runtime.errors import Misuse
from fairlead.runtime.run_key import token

SAVE_TIMEOUT_S = 4 * 3600.0
"""Seconds for which ranks wait for the slowest of them to write or upload its part."""


class Links:
    """Channels that all ranks open at the first use, through torch.distributed if the program has initialized it."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._agreement: Agreement | None = None
        self._channels: list[Channel] = []
        self._saving: Channel | None = None
        self._memory: Channel | None = None

    def agreement(self) -> Agreement:
        """Return the exchange for stop notices and due checkpoints."""
        if self._agreement is None:
            self._open()
            self._agreement = Agreement(self._channels[0])
        return self._agreement

    def saving(self) -> Channel:
        """Return the channel for saves and restores."""
        if self._saving is None:
            self._open()
        assert self._saving is not None
        if not isinstance(self._saving, Gloo) and self._environment.world_size > 1 and _torch_distributed():
            # The program initialized torch.distributed after resume(); from now on its tensors are saved together.
            self._saving = Gloo(timeout_s=SAVE_TIMEOUT_S)
        return self._saving

    def memory(self) -> Channel:
        """Return the channel for saves into memory, separate from that for saves to disk."""
        if self._memory is None:
            self._open()
        assert self._memory is not None
        if not isinstance(self._memory, Gloo) and self._environment.world_size > 1 and _torch_distributed():
            self._memory = Gloo(timeout_s=SAVE_TIMEOUT_S)
        return self._memory

    def close(self) -> None:
        for channel in self._channels:
            channel.close()

    def _open(self) -> None:
        """Open a channel for each thread, so that background saves and the exchange never block each other."""
        if self._channels:
            return
        environment = self._environment
        names = ("agree", "save") if environment.memory_dir is None else ("agree", "save", "memory")
        if environment.world_size > 1 and _torch_distributed():
            self._channels = [Gloo(), *(Gloo(timeout_s=SAVE_TIMEOUT_S) for _ in names[1:])]
        else:
            self._channels = open_channels(environment, names, purpose="agree")
        self._saving = self._channels[1]
        self._memory = self._channels[2] if len(names) > 2 else None


def open_channels(environment: Environment, names: Sequence[str], *, purpose: str) -> list[Channel]:
    """Open a channel between all ranks for each name, over the port of their own.

    Args:
        purpose: What they are for, as part of the token by which the ranks recognize each other.

    Raises:
        Misuse: There are several ranks, and they have no such port.
    """
    if environment.world_size == 1:
        return [Alone() for _ in names]
    if environment.agree_port is None:
        raise Misuse(
            f"this is one of {environment.world_size} ranks, and they have no way to talk to each other; "
            "call torch.distributed.init_process_group() before run.resume(), or start them with Fairlead"
        )
    return list(
        open_stars(
            rank=environment.rank,
            world_size=environment.world_size,
            host=environment.master_addr,
            port=environment.agree_port,
            token=token(environment.key_file, environment.run_uid, environment.attempt, purpose),
            names=names,
        )
    )


def _torch_distributed() -> bool:
    """Return whether the program has initialized torch.distributed; never imports it."""
    dist: Any = sys.modules.get("torch.distributed")
    return dist is not None and bool(dist.is_available()) and bool(dist.is_initialized())
