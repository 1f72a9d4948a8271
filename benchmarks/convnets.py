"""Six convolutional networks as their papers and torchvision describe them, operator by operator."""

from collections.abc import Callable

from benchmarks.convolutions import Tape


def vgg16() -> Tape:
    """Simonyan and Zisserman, arXiv 1409.1556, table 1, column D."""
    net = Tape(3, (224, 224))
    for widths in ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)):
        for width in widths:
            net.conv(width, 3, bias=True).activation()
        net.pool(2, 2, same=False, indices=True)
    return net.linear(4096).activation().linear(4096).activation().linear(1000)


def resnet50() -> Tape:
    """He et al., arXiv 1512.03385, table 1; strides in the 3x3 convolutions."""
    net = Tape(3, (224, 224)).conv(64, 7, 2).norm().activation().pool(3, 2, indices=True)
    for width, blocks, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            net.keep()
            stride = first if block == 0 else 1
            main = net.fork().conv(width, 1).norm().activation().conv(width, 3, stride).norm().activation()
            main.conv(4 * width, 1).norm()
            side = net.fork().conv(4 * width, 1, stride).norm() if block == 0 else net.fork()
            net.join(main, side)
            net.activation()
    return net.average().linear(1000)


def mobilenet_v2() -> Tape:
    """Sandler et al., arXiv 1801.04381, table 2."""
    net = Tape(3, (224, 224)).conv(32, 3, 2).norm().activation(keeps_input=True)
    for factor, out, blocks, first in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for block in range(blocks):
            stride = first if block == 0 else 1
            net.keep()
            wide, keeps = factor * net.channels, stride == 1 and net.channels == out
            main = net.fork()
            if factor > 1:
                main.conv(wide, 1).norm().activation(keeps_input=True)
            main.conv(wide, 3, stride, groups=wide).norm().activation(keeps_input=True).conv(out, 1).norm()
            net.join(*((main, net.fork()) if keeps else (main,)))
    return net.conv(1280, 1).norm().activation(keeps_input=True).average().linear(1000)


def efficientnet_b0() -> Tape:
    """Tan and Le, arXiv 1905.11946, table 1."""
    net = Tape(3, (224, 224)).conv(32, 3, 2).norm().activation(keeps_input=True)
    for factor, out, blocks, first, kernel in (
        (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    ):  # fmt: skip
        for block in range(blocks):
            stride = first if block == 0 else 1
            net.keep()
            inside, keeps = net.channels, stride == 1 and net.channels == out
            wide = factor * inside
            main = net.fork()
            if factor > 1:
                main.conv(wide, 1).norm().activation(keeps_input=True)
            main.conv(wide, kernel, stride, groups=wide).norm().activation(keeps_input=True)
            main.scale(max(1, inside // 4)).conv(out, 1).norm()
            net.join(*((main, net.fork()) if keeps else (main,)))
    return net.conv(1280, 1).norm().activation(keeps_input=True).average().linear(1000)


def xception() -> Tape:
    """Chollet, arXiv 1610.02357, fig. 5."""
    net = Tape(3, (224, 224)).conv(32, 3, 2, same=False).norm().activation()
    net.conv(64, 3, same=False).norm().activation()

    def separable(tape: Tape, out: int) -> None:
        tape.conv(tape.channels, 3, groups=tape.channels).conv(out, 1).norm()

    for width in (128, 256, 728, 1024):
        if width == 1024:
            for _ in range(8):
                net.keep()
                main = net.fork()
                for _ in range(3):
                    main.activation()
                    separable(main, 728)
                net.join(main, net.fork())
        net.keep()
        main = net.fork()
        separable(main, 728 if width == 1024 else width)
        main.activation()
        separable(main, width)
        main.pool(3, 2, indices=True)
        side = net.fork().conv(width, 1, 2).norm()
        net.join(main, side)
    separable(net, 1536)
    net.activation()
    separable(net, 2048)
    return net.activation().average().linear(1000)


def inception_v3() -> Tape:
    """Szegedy et al., arXiv 1512.00567, table 1, with the auxiliary classifier."""
    net = Tape(3, (299, 299))

    def unit(tape: Tape, out: int, kernel: int | tuple[int, int], stride: int = 1, *, same: bool = True) -> Tape:
        return tape.conv(out, kernel, stride, same=same).norm().activation()

    def joined(*branches: Tape) -> None:
        net.join(*branches, concatenate=True)

    unit(net, 32, 3, 2, same=False)
    unit(net, 32, 3, same=False)
    unit(net, 64, 3)
    net.pool(3, 2, same=False, indices=True)
    unit(net, 80, 1)
    unit(net, 192, 3, same=False)
    net.pool(3, 2, same=False, indices=True)
    for pooled in (32, 64, 64):
        net.keep()
        double = unit(unit(unit(net.fork(), 64, 1), 96, 3), 96, 3)
        joined(
            unit(net.fork(), 64, 1),
            unit(unit(net.fork(), 48, 1), 64, 5),
            double,
            unit(net.fork().pool(3, 1), pooled, 1),
        )
    net.keep()
    double = unit(unit(unit(net.fork(), 64, 1), 96, 3), 96, 3, 2, same=False)
    joined(unit(net.fork(), 384, 3, 2, same=False), double, net.fork().pool(3, 2, same=False, indices=True))
    for width in (128, 160, 160, 192):
        net.keep()
        single = unit(unit(unit(net.fork(), width, 1), width, (1, 7)), 192, (7, 1))
        double = unit(net.fork(), width, 1)
        for out, kernel in ((width, (7, 1)), (width, (1, 7)), (width, (7, 1)), (192, (1, 7))):
            unit(double, out, kernel)
        joined(unit(net.fork(), 192, 1), single, double, unit(net.fork().pool(3, 1), 192, 1))
    side = unit(unit(net.fork().pool(5, 3, same=False), 128, 1), 768, 5, same=False).average().linear(1000)
    net.parameters, net.saved = net.parameters + side.parameters, net.saved + side.saved
    net.keep()
    single = unit(unit(net.fork(), 192, 1), 320, 3, 2, same=False)
    double = unit(unit(unit(unit(net.fork(), 192, 1), 192, (1, 7)), 192, (7, 1)), 192, 3, 2, same=False)
    joined(single, double, net.fork().pool(3, 2, same=False, indices=True))
    for _ in range(2):
        net.keep()
        single = unit(net.fork(), 384, 1)
        double = unit(unit(net.fork(), 448, 1), 384, 3)
        halves = [unit(each.fork(), 384, kernel) for each in (single, double) for kernel in ((1, 3), (3, 1))]
        for each in (single, double):
            net.parameters, net.saved = net.parameters + each.parameters, net.saved + each.saved
        joined(unit(net.fork(), 320, 1), *halves, unit(net.fork().pool(3, 1), 192, 1))
    return net.average().linear(1000)


NETWORKS: dict[str, Callable[[], Tape]] = {
    "vgg16": vgg16,
    "resnet50": resnet50,
    "Xception": xception,
    "mobilenetV2": mobilenet_v2,
    "efficientnet": efficientnet_b0,
    "inception": inception_v3,
}
