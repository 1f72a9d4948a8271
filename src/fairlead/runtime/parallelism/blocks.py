"""Finds the blocks of a model: its longest list of modules of one class."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairlead.runtime.errors import Misuse

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The list of blocks of a model, and its path.

    Attributes:
        path: Names of attributes from the model to the list.
        container: The list itself; None if the model has none.
    """

    path: tuple[str, ...]
    container: "torch.nn.Module | None"

    @property
    def modules(self) -> "list[torch.nn.Module]":
        """The blocks, in order."""
        return [] if self.container is None else [item for item in self.container._modules.values() if item is not None]


def find_blocks(model: "torch.nn.Module", path: str | None) -> Blocks:
    """Find the blocks at a path, or by the model's structure if the path is None.

    Raises:
        Misuse: The model has no ``ModuleList`` or ``Sequential`` at the path.
    """
    from torch.nn import ModuleList, Sequential

    if path is not None:
        try:
            container = model.get_submodule(path)
        except AttributeError:
            raise Misuse(f"the plan's blocks are at {path}, which the model does not have") from None
        if not isinstance(container, (ModuleList, Sequential)):
            kind = type(container).__name__
            raise Misuse(f"the plan's blocks, {path}, are a {kind}; give the path of a ModuleList or Sequential")
        return Blocks(path=tuple(path.split(".")), container=container)
    blocks = Blocks(path=(), container=None)
    for name, module in model.named_modules():
        if not isinstance(module, (ModuleList, Sequential)):
            continue
        members = list(module)
        alike = len({type(member) for member in members}) == 1 and any(True for _ in members[0].children())
        if alike and len(members) > len(blocks.modules):
            blocks = Blocks(path=tuple(name.split(".")) if name else (), container=module)
    return blocks
