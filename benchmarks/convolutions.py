"""Memory of training a convolutional network in fp32 on one GPU, from its operators.

Backward needs the input of each convolution, linear layer and batch norm, and what activations say (PyTorch,
`derivatives.yaml`): an activation that works in place shares its output with the next operator's input. One tensor that
two operators need counts once.
"""

from dataclasses import dataclass, field

from fairlead.policy.strategy.memory import GIB, RESERVED_OVER_ALLOCATED

FP32 = 4
WINOGRAD = 4
# CUDA's context with all kernels of cuDNN and cuBLAS, and their workspaces: one number for all networks, the mean over
# the twelve convolutional rows of GPUMemNet's table (`python -m benchmarks.memory --fit`).
CONTEXT = 1.77 * GIB


@dataclass(slots=True)
class Tape:
    """The needs of a network's backward pass, operator by operator, for one sample.

    Attributes:
        channels: Of the current tensor.
        size: Height and width of the current tensor.
        parameters: So far.
        saved: Elements of all tensors that backward needs, so far.
        spatial: The most elements that a convolution over neighbours in all channels has as input and output.
    """

    channels: int
    size: tuple[int, int]
    parameters: int = 0
    saved: int = 0
    spatial: int = 0
    _counted: bool = field(default=False)

    @property
    def elements(self) -> int:
        """Elements of the current tensor."""
        return self.channels * self.size[0] * self.size[1]

    def keep(self) -> None:
        """The current tensor is needed by backward, if it is not counted yet."""
        if not self._counted:
            self.saved += self.elements
            self._counted = True

    def become(self, channels: int, size: tuple[int, int]) -> None:
        """Another tensor is the current one."""
        self.channels, self.size, self._counted = channels, size, False

    def fork(self) -> "Tape":
        """The same tensor at the start of a branch, with nothing counted but that."""
        return Tape(self.channels, self.size, _counted=self._counted)

    def join(self, *branches: "Tape", concatenate: bool = False) -> None:
        """The sum of branches, or their channels one after the other, becomes the current tensor."""
        self.parameters += sum(each.parameters for each in branches)
        self.saved += sum(each.saved for each in branches)
        self.spatial = max(self.spatial, *(each.spatial for each in branches))
        channels = sum(each.channels for each in branches) if concatenate else branches[0].channels
        self.become(channels, branches[0].size)

    def conv(
        self,
        out: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        *,
        groups: int = 1,
        same: bool = True,
        bias: bool = False,
    ) -> "Tape":
        """A convolution; ``same`` pads by half the kernel."""
        self.keep()
        high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
        self.parameters += out * (self.channels // groups) * high * wide + (out if bias else 0)
        given = self.elements
        self.become(out, _after(self.size, (high, wide), stride, same=same))
        if groups == 1 and high * wide > 1:
            self.spatial = max(self.spatial, given + self.elements)
        return self

    def norm(self) -> "Tape":
        """A batch norm, whose output is a new tensor."""
        self.keep()
        self.parameters += 2 * self.channels
        self.become(self.channels, self.size)
        return self

    def activation(self, *, keeps_input: bool = False) -> "Tape":
        """An activation in place, or one whose backward needs its input, such as SiLU."""
        if keeps_input:
            self.keep()
            self.become(self.channels, self.size)
        else:
            self.keep()
        return self

    def pool(self, kernel: int, stride: int, *, same: bool = True, indices: bool = False) -> "Tape":
        """A pooling; the greatest of a window is remembered with indices of 8 bytes, and its input kept."""
        if indices:
            self.keep()
        self.become(self.channels, _after(self.size, (kernel, kernel), stride, same=same))
        if indices:
            self.saved += 2 * self.elements
        return self

    def average(self) -> "Tape":
        """The average of each channel."""
        self.become(self.channels, (1, 1))
        return self

    def linear(self, out: int) -> "Tape":
        """A linear layer over all that is there."""
        self.keep()
        self.parameters += self.elements * out + out
        self.become(out, (1, 1))
        return self

    def scale(self, squeezed: int) -> "Tape":
        """Squeeze and excitation (arXiv 1709.01507, sec. 3): channels times what two layers of their averages say."""
        self.keep()
        self.parameters += 2 * self.channels * squeezed + squeezed + self.channels
        self.saved += 2 * (self.channels + squeezed)
        self.become(self.channels, self.size)
        return self


def _after(size: tuple[int, int], kernel: tuple[int, int], stride: int, *, same: bool) -> tuple[int, int]:
    """Height and width after a window went over them."""
    high, wide = (
        (each + (2 * (over // 2) if same else 0) - over) // stride + 1 for each, over in zip(size, kernel, strict=True)
    )
    return high, wide


def peak_memory(tape: Tape, batch: int, *, states: int = 2) -> float:
    """Bytes that a GPU has in use while it trains, as `nvidia-smi` counts them.

    Winograd's F(2x2, 3x3) (Lavin and Gray, arXiv 1509.09308, sec. 4.1) transforms each 2x2 tile into 4x4: four times
    the input and the output of the largest convolution, which the allocator then keeps.

    Args:
        states: Copies of the parameters: 2 with gradients, 3 with momentum, 4 with Adam's moments.
    """
    activations = RESERVED_OVER_ALLOCATED * tape.saved + WINOGRAD * tape.spatial
    return FP32 * (states * tape.parameters + batch * activations) + CONTEXT
