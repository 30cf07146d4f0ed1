"""Make groups of a model's variables, for the argument `groups` of every optimizer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras

from keras_tfopt.checks import check_integer, check_number
from keras_tfopt.engine import (
    NORMALIZATION,
    check_built,
    is_called,
    layers_below,
    layers_in,
    normalization_and_bias,
    path_of,
    several_paths,
)

# A part of a name that numbers the blocks of a network, as in `transformer_layer_3` or in
# `conv2_block1_1_conv`.
_NUMBERED = re.compile(r"(block|layer|stage|unit|group|cell)s?_?\d+[a-z]?(?![a-z0-9])")
_EMBEDDING = re.compile(r"Embed(ding)?s?$")


class _Unit(NamedTuple):
    """A layer with weights, or several that belong together."""

    name: str
    variables: list[Any]
    normalizes: bool
    embeds: bool


def layer_decay(
    model: Any, decay: float, depth: int | None = None, min_factor: float = 0.0
) -> dict[str, dict[str, float]]:
    r"""Return groups in which learning rates fall with the distance from the head of a model.

    $$
    \text{factor} = \max(\text{min\_factor}, \text{decay}^{\text{last level} - \text{level}})
    $$

    Numbered blocks are levels: layers such as `transformer_layer_3`, and layers whose names begin
    alike, such as those of `conv2_block1`. Layers before the first block are level 0. Layers after
    the last block are the head, the last level. In models without such names each layer is a level,
    embeddings at the beginning share level 0, and the head is the last layer. Normalizations belong
    to the level of the layer before. Models and layers with blocks inside are searched, too.

    Args:
        model: A `keras.Model` or layer that is built: Sequential, functional or nested.
        decay: Number in (0, 1].
        depth: Integer >= 2: the number of levels into which those of the model are merged evenly;
            the head stays alone. Defaults to None: all levels of the model.
        min_factor: Number in [0, 1], the smallest factor. Defaults to 0.

    Returns:
        A dictionary for `groups`: regular expressions for paths, with `learning_rate_factor`.

    Raises:
        ValueError: if two levels have variables of one path, or `depth` is more than all levels.

    Example:

    >>> groups = [keras_tfopt.layer_decay(model, 0.75), keras_tfopt.no_decay(model)]
    >>> model.compile(optimizer=keras_tfopt.Adam(1e-3, weight_decay=0.05, groups=groups))

    Reference: Clark et al., "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than
    Generators" (2020); Bao et al., "BEiT: BERT Pre-Training of Image Transformers" (2022).

    Differences: levels are those of `timm.optim.param_groups_layer_decay`, which finds them by
    patterns that each of its models has.
    """
    check_built(model)
    decay = check_number("decay", decay, 0, 1, left_open=True)
    min_factor = check_number("min_factor", min_factor, 0, 1)
    levels = [[path_of(v) for v in variables] for variables in _levels(model)]
    last = len(levels) - 1
    if depth is not None:
        depth = check_integer("depth", depth, 2)
        if depth > len(levels):
            raise ValueError(
                f"Argument `depth` must be at most the number of levels of the model, "
                f"{len(levels)}. Received: {depth}"
            )
    trainable = {path_of(variable) for variable in model.trainable_variables}
    by_factor: dict[float, list[str]] = {}
    seen: dict[str, float] = {}
    for number, paths in enumerate(levels):
        below = last - number
        if depth is not None:
            below = 0 if number == last else depth - 1 - number * (depth - 1) // last
        factor = max(min_factor, decay**below)
        for path in dict.fromkeys(path for path in paths if path in trainable):
            if seen.setdefault(path, factor) != factor:
                raise ValueError(
                    "Argument `model` must have variables with distinct paths, which groups go by: "
                    f"give its layers names. Received: {path!r} in levels with different factors"
                )
            by_factor.setdefault(factor, []).append(path)
    return {
        several_paths(paths): {"learning_rate_factor": factor}
        for factor, paths in by_factor.items()
    }


def no_decay(model: Any) -> dict[str, dict[str, float]]:
    """Return the group of variables that weight decay usually leaves alone.

    These are biases, the variables of normalizations and embeddings, and all other vectors and
    scalars. They are found by their layers and shapes, not by their paths.

    Args:
        model: A `keras.Model` or layer that is built.

    Returns:
        A dictionary for `groups`: a regular expression for paths, with `weight_decay` of 0.

    Example:

    >>> optimizer = keras_tfopt.Adam(1e-3, weight_decay=0.01, groups=keras_tfopt.no_decay(model))
    """
    exempt = {id(variable) for variable in normalization_and_bias(model)}
    for layer in layers_in(model):
        if is_called(layer, _EMBEDDING) and not layers_below(layer):
            exempt |= {id(variable) for variable in layer.trainable_variables}
    chosen = [v for v in model.trainable_variables if id(v) in exempt or len(v.shape) < 2]
    # The pattern differs from those of `layer_decay`, so that dictionaries can be merged.
    pattern = several_paths([path_of(v) for v in chosen], capturing=False)
    return {pattern: {"weight_decay": 0.0}} if chosen else {}


def _levels(model: Any) -> list[list[Any]]:
    """Return the variables of each level, the lowest first."""
    units, head = _units_and_head(model)
    blocks = _blocks([unit.name for unit in units])
    numbered = [place for place, block in enumerate(blocks) if block is not None]
    levels: list[list[Any]] = [_own_variables(model)]
    level_of: dict[str, int] = {}
    for place, (unit, block) in enumerate(zip(units, blocks, strict=True)):
        is_above = bool(numbered) and place > numbered[-1]
        if block is not None:
            if block not in level_of:
                level_of[block] = len(levels)
                levels.append([])
            levels[level_of[block]] += unit.variables
        elif is_above and not unit.normalizes:
            head = head + unit.variables
        elif numbered or unit.normalizes or (unit.embeds and len(levels) == 1):
            levels[-1] += unit.variables
        else:
            levels.append(list(unit.variables))
    return [level for level in (*levels, head) if level]


def _units_and_head(model: Any) -> tuple[list[_Unit], list[Any]]:
    """Return the parts of a model in order, without a head, and the variables of the head."""
    parts = [layer for layer in layers_below(model) if layer.weights]
    head: list[Any] = []
    while len(parts) == 1 and _is_looked_into(parts[0]):
        parts = [layer for layer in layers_below(parts[0]) if layer.weights]
    if parts and not is_called(parts[-1], NORMALIZATION) and not _numbered_below(parts[-1]):
        head = list(parts.pop().weights)
    units = [unit for part in parts for unit in _units_of(part)]
    while len(units) > 1 and units[0].normalizes:  # such as a normalization of inputs
        first = units.pop(0)
        units[0] = units[0]._replace(variables=first.variables + units[0].variables)
    return units, head


def _units_of(layer: Any) -> Iterator[_Unit]:
    if not _is_looked_into(layer):
        kinds = is_called(layer, NORMALIZATION), is_called(layer, _EMBEDDING)
        yield _Unit(layer.name, list(layer.weights), *kinds)
        return
    own = _own_variables(layer)
    if own:
        yield _Unit(layer.name, own, False, True)
    for part in layers_below(layer):
        if part.weights:
            yield from _units_of(part)


def _is_looked_into(layer: Any) -> bool:
    if _NUMBERED.search(layer.name):
        return False
    return isinstance(layer, keras.Model) or len(_numbered_below(layer)) > 1


def _numbered_below(layer: Any) -> list[Any]:
    inside = layers_in(layer, include_self=False)
    return [one for one in inside if one.weights and _NUMBERED.search(one.name)]


def _own_variables(layer: Any) -> list[Any]:
    """Return the variables of a layer that belong to none of the layers inside."""
    inside = {id(v) for below in layers_below(layer) for v in below.weights}
    return [variable for variable in layer.weights if id(variable) not in inside]


def _blocks(names: Sequence[str]) -> list[str | None]:
    """Return the name of the block that each layer belongs to, None for layers outside of blocks.

    A layer before the first block of a stage, such as `stage_1_downsample`, belongs to that block.
    """
    found: list[str | None] = []
    for name in names:
        # If Keras makes the names of layers, the first has no number.
        name = f"{name}_0" if f"{name}_1" in names else name
        numbered = list(_NUMBERED.finditer(name))
        found.append(name[: numbered[-1].end()] if numbered else None)
    for place in reversed(range(len(found) - 1)):
        block, after = found[place], found[place + 1]
        if block is not None and after is not None and after.startswith(f"{block}_"):
            found[place] = after
    return found
