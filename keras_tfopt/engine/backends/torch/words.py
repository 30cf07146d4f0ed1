"""Keep two bfloat16 slots in one tensor of 32-bit words, each in one half of the words.

Where compiled code for a processor mixes float32 and bfloat16, it fills half of each vector of
bfloat16 only. With words, all vectors are full: over 20M numbers, a step of Adam takes 0.8 times as
long as with float32 slots, where it took 1.5 times as long. The values of the slots are views of
the words.

The dtype of the words is float32, although they are bits: for vectors of 256 bits, compiled code
loads integers in two halves by way of memory, and waits for them. A step took twice as long.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from keras_tfopt.engine.backends.torch.values import is_on_gpu
from keras_tfopt.engine.state.state import has_codes

if TYPE_CHECKING:
    from keras_tfopt.engine.step.moving import Update

Pairs = dict[int, int]
"""For slots in the high halves of words: the slot in the low halves, both by their places."""

_HIGH, _LOW = -0x10000, 0xFFFF  # the bits of the halves


def pairs_of(update: Update) -> Pairs:
    """Return which slots of a variable share words."""
    kind = update.kind
    if has_codes(kind.stored) or is_on_gpu(update.variable._value) or sys.byteorder != "little":
        return {}
    places = [update.names.index(one.slot) for one in kind.stored]
    return dict(zip(places[1::2], places[::2], strict=False))


def read(tensors: Sequence[Any], pairs: Pairs) -> list[Any]:
    """Return the values of all slots from tensors, of which some have two; those as float32."""
    values: list[Any] = []
    left = iter(tensors)
    low: dict[int, Any] = {}
    for place in range(len(tensors) + len(pairs)):
        if place in pairs:
            values.append((low[pairs[place]] & _HIGH).view(torch.float32))
        elif place in pairs.values():
            low[place] = next(left).view(torch.int32)
            values.append((low[place] << 16).view(torch.float32))
        else:
            values.append(next(left))
    return values


def written(old: Sequence[Any], new: Sequence[Any], pairs: Pairs) -> list[Any]:
    """Return new values for the tensors of `read`, None for those that stay.

    Args:
        old: The values of all slots.
        new: The new values, None for those that stay. Those of slots that share words are float32
            numbers that bfloat16 has.
        pairs: Which slots share words.
    """
    found = {place: value for place, value in enumerate(new) if place not in pairs}
    for high, low in pairs.items():
        if new[high] is not None or new[low] is not None:
            halves = (old[place] if new[place] is None else new[place] for place in (high, low))
            first, second = (half.view(torch.int32) for half in halves)
            found[low] = ((first & _HIGH) | ((second >> 16) & _LOW)).view(torch.float32)
    return list(found.values())
