"""Find out which optimizer a tensor belongs to, in a checkpoint of several optimizers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from keras_tfopt.legacy.checkpoints.files import CheckpointFile
from keras_tfopt.legacy.checkpoints.names import Stored
from keras_tfopt.legacy.checkpoints.powers import steps_of_power

Names = tuple[str | None, ...]


def own(
    names: list[str],
    tensors: Mapping[str, Stored],
    sources: Collection[str],
    file: CheckpointFile,
) -> list[str]:
    """Return those of several tensors of one name that may belong to an optimizer.

    The originals place such a tensor with a variable that the optimizer trains. The graph, which
    `tf.train.Saver` writes, has this placement. A scope that holds all variables of the optimizer
    shows the owner, too.

    Args:
        names: The tensors.
        tensors: Everything in the checkpoint.
        sources: The names of the variables that the optimizer trains.
        file: The checkpoint.
    """
    if len(names) < 2:
        return names
    mine = {part for source in sources for part in tensors[source].names}
    with_variable = {name: file.colocations.get(tensors[name].names[0]) for name in names}
    placed = [name for name in names if with_variable[name] in mine]
    names = placed or [name for name in names if with_variable[name] is None] or names
    scopes = {name: name[: name.rfind("/") + 1] for name in names}
    around = [n for n in names if scopes[n] and all(s.startswith(scopes[n]) for s in sources)]
    return around or names


def agreeing(
    choices: Sequence[Sequence[str | None]],
    betas: Sequence[Any],
    value_of: Callable[[str], float],
    taken: Collection[str],
) -> Names:
    """Return one power of each decay rate, such that all give the same number of steps.

    Args:
        choices: The names of the powers of each decay rate.
        betas: The decay rates, floats unless they change.
        value_of: Gives the value of a power.
        taken: Powers of other optimizers, which are chosen last.

    Raises:
        ValueError: if several numbers of steps are possible.
    """
    steps: dict[Names, int | None] = {}
    for names in itertools.product(*choices):
        told = {_steps(n, beta, value_of) for n, beta in zip(names, betas, strict=True)} - {None}
        if len(told) < 2 and -1 not in told:
            steps[names] = told.pop() if told else None
    if len(set(steps.values())) > 1:
        raise ambiguous(steps)
    found = list(steps) or list(itertools.product(*choices))
    return min(found, key=lambda names: sum(name in taken for name in names))


def _steps(name: str | None, beta: Any, value_of: Callable[[str], float]) -> int | None:
    """Return the steps that a power gives; None if it gives none, -1 if the rate is another."""
    if name is None or not isinstance(beta, float):
        return None
    try:
        return steps_of_power(value_of(name), beta)
    except ValueError:
        return -1


def ambiguous(choices: Mapping[Names, int | None]) -> ValueError:
    """Return the error for several possible tensors of an optimizer, with the steps they give."""
    told = [
        " and ".join(filter(None, names)) + (f" ({steps} steps)" if steps is not None else "")
        for names, steps in choices.items()
    ]
    first = next(iter(choices))
    others = {name: None for names in choices for name in names if name and name not in first}
    return ValueError(
        f"The checkpoint has the state of several optimizers: {'; '.join(told)}. Which is that of "
        "this one follows neither from a `.meta` file nor from the scope of its variables. Leave "
        f"the others out, for example name_map={others}, or move them into the scope of the "
        "variables that they belong to"
    )
