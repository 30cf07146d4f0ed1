"""The variables that are measured."""

from __future__ import annotations

Shapes = list[tuple[int, ...]]


def one_large() -> Shapes:
    return [(5000, 4000)]


def many_small() -> Shapes:
    return [(64, 64)] * 200


def convolutional_net() -> Shapes:
    """ResNet-50 as `keras.applications` has it: 25.6 million parameters in 214 variables."""
    shapes: Shapes = [(7, 7, 3, 64), (64,), (64,), (64,)]
    inputs = 64
    for filters, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolutions = [
                (1, 1, inputs, filters),
                (3, 3, filters, filters),
                (1, 1, filters, 4 * filters),
            ]
            if block == 0:
                convolutions.insert(0, (1, 1, inputs, 4 * filters))
            for shape in convolutions:
                shapes += [shape] + [shape[-1:]] * 3  # kernel, bias, and the normalization's two
            inputs = 4 * filters
    return [*shapes, (2048, 1000), (1000,)]


def transformer() -> Shapes:
    """Four layers of width 256 with eight heads, vocabulary of 8,192: 7.3 million parameters."""
    width, heads, vocabulary = 256, 8, 8192
    layer: Shapes = [(width, heads, width // heads), (heads, width // heads)] * 3
    layer += [(heads, width // heads, width), (width,)] + [(width,)] * 4
    layer += [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return [(vocabulary, width), (512, width), *layer * 4, (width, vocabulary), (vocabulary,)]


def large_transformer(layers: int = 8) -> Shapes:
    """Layers of width 512 with kernels as matrices, vocabulary of 8,192: 30 million parameters."""
    width = 512
    layer: Shapes = [(width, width), (width,)] * 4 + [(width,)] * 4
    layer += [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return [(8192, width), *layer * layers]


WORK = {
    "one of 20M": one_large,
    "200 of 64x64": many_small,
    "convolutional net": convolutional_net,
    "transformer": transformer,
}
HUGE = {"one of 1B": lambda: [(50_000, 20_000)]}  # for GPUs
