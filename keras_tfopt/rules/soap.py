from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.checks import one_of
from keras_tfopt.engine import Slot, add_scaled, conditional, lerp
from keras_tfopt.fields import field, flag, integer, within
from keras_tfopt.rule import Rule, register, zeros
from keras_tfopt.rules.blocks import along, merged_shape, reshaped, with_products
from keras_tfopt.rules.eigenbases import eigenbasis, next_eigenbasis
from keras_tfopt.rules.factored import rms
from keras_tfopt.rules.moments import over_root


@register
class SOAP(Rule):
    r"""Adam in the eigenbasis of Shampoo's preconditioners.

    $$
    \begin{aligned}
    m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
    v &\leftarrow \beta_2 v + (1 - \beta_2) R(g)^2 \\
    x &\leftarrow x - \eta \frac{\sqrt{1 - \beta_2^{t-1}}}{1 - \beta_1^{t-1}}
        R^{-1}\left(\frac{R(m)}{\sqrt v + \epsilon}\right) \\
    G_i &\leftarrow \beta_s G_i + (1 - \beta_s) g_i g_i^\top \\
    Q_i &\leftarrow \operatorname{qr}(G_i Q_i)
        && \text{if the frequency divides } t - 1
    \end{aligned}
    $$

    at step t. Here $g_i$ is the gradient as a matrix with the i-th axis as rows and all others as
    columns. $R(a) = a \times_1 Q_1^\top \dots \times_n Q_n^\top$ rotates an array into the bases
    $Q_i$ of the n axes, and $R^{-1}$ rotates it back. $\operatorname{qr}$ is the orthogonal factor.
    Columns of $Q_i$ are sorted first, by descending $\operatorname{diag}(Q_i^\top G_i Q_i)$, and v
    with them. The first step starts $G_i$, and $Q_i$ as its eigenvectors, and moves nothing.

    Args:
        learning_rate: $\eta \geq 0$, number, schedule or callable. Defaults to 0.003.
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.95.
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.95.
        shampoo_beta: $\beta_s$ in [0, 1). None, the default, is `beta_2`.
        epsilon: $\epsilon \geq 0$. Defaults to 1e-8.
        precondition_frequency: Steps from one basis to the next, integer >= 1. Nothing is
            decomposed in between. Defaults to 10.
        max_precond_dim: Largest length of an axis with a basis, integer >= 1. Longer ones are not
            rotated. Defaults to 10000.
        merge_dims: Whether neighboring axes are merged, from the left, while their product is at
            most `max_precond_dim`. Defaults to False.
        precondition_1d: Whether vectors are rotated, too. Otherwise they take the steps of Adam.
            Defaults to False.
        normalize_grads: Whether the step of each variable is divided by its root mean square.
            Defaults to False.
        correct_bias: Whether the learning rate is corrected for moments that start at zero.
            Defaults to True.
        decomposition: "qr" for bases by a power iteration as above, the default, or "eigh" for
            eigenvectors, which take longer. Then v is not sorted.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m` and `v` of the variable's shape, v in the rotated basis; `GG_0`, `GG_1`, ... and
    `Q_0`, `Q_1`, ..., square matrices of the length of an axis, of those that have a basis.

    Row gradients: as if dense.

    Cost: besides Adam, of a matrix of shape (a, b), eight products that take $2ab(a + b)$
    operations a pair, and a decomposition of both matrices in steps with a new basis.

    A gradient with NaN, infinity, or numbers whose squares overflow raises a ValueError in eager
    steps and leaves everything as it is. Compiled steps cannot raise: the averages are spoiled for
    good. Wrap the optimizer in a `LossScaleOptimizer` where that may happen.

    Example:
    >>> model.compile(optimizer=keras_tfopt.SOAP(3e-3, weight_decay=0.01))

    Reference: Vyas et al., "SOAP: Improving and Stabilizing Shampoo using Adam" (2024).

    Differences: the authors' `SOAP` decays weights by 0.01 unless told otherwise, after the step
    and not in the first; `weight_decay` here comes before each step. It keeps m in the rotated
    basis, which is the same. It merges axes of kernels in the order of PyTorch, output channels
    first. Columns of bases have a fixed sign here. t counts the optimizer's steps: a variable whose
    first gradient comes later begins with $Q_i = I$. Keras has no SOAP.
    """

    scope = "variable"
    second_order = True
    fused = False
    needs_finite = True

    learning_rate: Any = 0.003
    beta_1: float = within(0, 1, default=0.95, right_open=True)
    beta_2: float = within(0, 1, default=0.95, right_open=True)
    shampoo_beta: float | None = within(0, 1, default=None, right_open=True)
    epsilon: float = within(0, default=1e-8)
    precondition_frequency: int = integer(1, default=10)
    max_precond_dim: int = integer(1, default=10000)
    merge_dims: bool = flag(default=False)
    precondition_1d: bool = flag(default=False)
    normalize_grads: bool = flag(default=False)
    correct_bias: bool = flag(default=True)
    decomposition: str = field(one_of("qr", "eigh"), default="qr")

    def slots(self, like: Any) -> dict[str, Slot]:
        slots = {"m": zeros(like), "v": zeros(like, signed=False)}
        for i, d in enumerate(self.axes(like.shape)):
            if self.has_basis(like.shape, d):
                basis = Slot((d, d), "identity", by_row=False)
                slots |= {f"GG_{i}": Slot((d, d), by_row=False), f"Q_{i}": basis}
        return slots

    def axes(self, shape: Any) -> tuple[int, ...]:
        """Return the lengths of axes, after merging."""
        if self.merge_dims:
            return merged_shape(shape, self.max_precond_dim)
        return tuple(int(n) for n in shape) or (1,)

    def has_basis(self, shape: Any, length: int) -> bool:
        """Return whether an axis of this length is rotated, of a variable of this shape."""
        wanted = len(shape) > 1 or self.precondition_1d
        return wanted and 0 not in shape and length <= self.max_precond_dim

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        first = step < 2
        one = ops.ones_like(step)
        count = ops.where(first, one, step - 1)
        rate = lr
        if self.correct_bias:
            rate = lr * ops.sqrt(1 - self.beta_2**count) / (1 - self.beta_1**count)
        return {
            "rate": ops.where(first, ops.zeros_like(step), rate),
            "keep_m": ops.where(first, one, self.beta_1 * one),
            "keep_v": ops.where(first, one, self.beta_2 * one),
        }

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        if 0 in x.shape:
            return x, {}
        axes = self.axes(x.shape)
        rotated = [i for i, d in enumerate(axes) if self.has_basis(x.shape, d)]
        bases = {i: getattr(s, f"Q_{i}") for i in rotated}
        g = reshaped(g, axes)
        m = lerp(reshaped(s.m, axes), g, 1 - t.keep_m)
        v = lerp(reshaped(s.v, axes), ops.square(_rotated(g, bases)), 1 - t.keep_v)
        direction = over_root(_rotated(m, bases), ops.sqrt(v), self.epsilon)
        for i, basis in bases.items():
            direction = along(direction, i, basis)
        if self.normalize_grads:
            size = rms(direction)  # zero in the first step
            direction = direction / ops.where(size > 0, size, ops.ones_like(size))
        x = add_scaled(x, reshaped(direction, x.shape), -t.rate, reuse=True)

        beta = self.beta_2 if self.shampoo_beta is None else self.shampoo_beta
        sums = {i: with_products(getattr(s, f"GG_{i}"), beta, g, i) for i in rotated}
        if rotated:
            bases, v = self._renewed(sums, bases, v, t)
        new = {"m": reshaped(m, x.shape), "v": reshaped(v, x.shape)}
        new |= {f"GG_{i}": total for i, total in sums.items()}
        return x, new | {f"Q_{i}": basis for i, basis in bases.items()}

    def _renewed(self, sums: dict[int, Any], bases: dict[int, Any], v: Any, t: Any) -> Any:
        """Return the bases and v, both changed where new bases are due."""

        def started() -> list[Any]:
            return [*(eigenbasis(total) for total in sums.values()), v]

        def refined() -> list[Any]:
            sorted_v, new = v, []
            for i, basis in bases.items():
                basis, order = next_eigenbasis(sums[i], basis)
                sorted_v = ops.take(sorted_v, order, axis=i)
                new.append(basis)
            return [*new, sorted_v]

        kept = [*bases.values(), v]
        due = (t.iteration - 1) % self.precondition_frequency < 1
        if self.decomposition == "eigh":
            *new, v = conditional(due, started, lambda: kept)
        else:
            *new, v = conditional(
                t.step < 2, started, lambda: conditional(due, refined, lambda: kept)
            )
        return dict(zip(bases, new, strict=True)), v


def _rotated(value: Any, bases: dict[int, Any]) -> Any:
    for i, basis in bases.items():
        value = along(value, i, ops.transpose(basis))
    return value
