from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.engine import Slot, all_finite
from keras_tfopt.fields import integer
from keras_tfopt.rule import register
from keras_tfopt.wrapper import Wrapper


@register
class SkipNonFinite(Wrapper):
    r"""Leaves out steps in which a gradient holds a NaN or an infinity, and counts them.

    $$
    \text{step} \leftarrow \begin{cases}
    \text{the inner optimizer's} & \text{if all gradients are finite} \\
    \text{none} & \text{else}
    \end{cases}
    $$

    A step that is left out changes no variable, no slot and no sum of micro-steps, runs no hook of
    other wrappers, and does not count as a step of the inner optimizer. A `LossScaleOptimizer`,
    which goes around all others, leaves out such steps by itself.

    Args:
        inner_optimizer: Any Keras optimizer, or its name or configuration.
        max_consecutive: Integer >= 0: after more than this many steps in a row are left out, the
            next step that is not compiled raises a `FloatingPointError`, as
            `keras_tfopt.callbacks.RaiseSkipped` does. Defaults to None: no limit.
        name: Name of the optimizer.
        **base: `groups`, which is passed on. Other options belong to `inner_optimizer`.

    Slots: none. `optimizer.skipped` is the number of steps left out, `optimizer.skipped_in_a_row`
    that of the last ones without a step between them. Both are saved.

    Row gradients: passed on.

    Example:

    >>> optimizer = keras_tfopt.SkipNonFinite(keras_tfopt.Adam(0.001), max_consecutive=10)

    Reference: Micikevicius et al., "Mixed Precision Training" (2018), which leaves out such steps.

    Differences: `keras.optimizers` and TensorFlow 1 put the NaN into every weight; TensorFlow 1 had
    a hook that stops training then.
    """

    max_consecutive: int | None = integer(0, default=None)

    def counters(self) -> dict[str, Slot]:
        return {"skipped": Slot((), 0, "int32"), "skipped_in_a_row": Slot((), 0, "int32")}

    def accept_step(self, grads: list[Any], s: Any) -> tuple[Any, dict[str, Any]]:
        finite = all_finite(grads)
        missed = ops.cast(ops.logical_not(finite), "int32")
        return finite, {
            "skipped": s.skipped + missed,
            "skipped_in_a_row": (s.skipped_in_a_row + 1) * missed,
        }

    @property
    def skipped(self) -> int:
        """Steps that were left out."""
        return self.count("skipped")

    @property
    def skipped_in_a_row(self) -> int:
        """Steps that were left out since the last one that was made."""
        return self.count("skipped_in_a_row")

    def raise_late_errors(self) -> None:
        """Raise an error, once, if more steps in a row were left out than `max_consecutive`."""
        in_a_row = self.known_count("skipped_in_a_row")
        if self.max_consecutive is None or in_a_row is None or in_a_row <= self.max_consecutive:
            return
        self.set_count("skipped_in_a_row", 0)
        raise FloatingPointError(
            f"Gradients were not finite in {in_a_row} steps in a row, and `max_consecutive` is "
            f"{self.max_consecutive}. Nothing was changed in these steps"
        )
