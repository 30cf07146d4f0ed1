from __future__ import annotations

import math
from typing import Any

from keras import ops

from keras_tfopt.checks import one_of
from keras_tfopt.engine import add_scaled, check_choice, lerp
from keras_tfopt.fields import field, flag, integer, within
from keras_tfopt.rule import register
from keras_tfopt.rules.blocks import reshaped
from keras_tfopt.rules.matrices import NOT_MATRICES, MatrixRule
from keras_tfopt.rules.muon_arguments import check_axes, check_others, check_scaling
from keras_tfopt.rules.orthogonalization import (
    NORMS,
    check_coefficients,
    check_iterations,
    orthogonalized,
)


@register
class Muon(MatrixRule):
    r"""Momentum whose update is made orthogonal, for matrices; another rule for everything else.

    With norms and products of matrices,

    $$
    \begin{aligned}
    m &\leftarrow \mu m + (1 - \mu) g, \qquad
    u = \begin{cases} \mu m + (1 - \mu) g & \text{with Nesterov} \\ m & \text{else} \end{cases} \\
    X &\leftarrow u / (\|u\|_F + \epsilon) \\
    X &\leftarrow a X + (b A + c A A) X, \quad A = X X^\top \qquad \text{some times} \\
    x &\leftarrow x - \eta f X
    \end{aligned}
    $$

    where the iteration moves all singular values near 1, and $f$ depends on the number of inputs
    (rows) and outputs (columns) of a matrix.

    Kernels are matrices whose columns are their last axis, and whose rows are all others, as in
    convolutions of height, width, input and output. Scalars, vectors and what `other_variables`
    chooses are moved by `others`: a rule that shares the learning rate, clipping, accumulation,
    averages and all other options with the matrices. Matrices of equal shape are stacked, so that
    the products of all are made at once.

    Args:
        learning_rate: $\eta \geq 0$, number, schedule or callable. Defaults to 0.001.
        momentum: $\mu$ in [0, 1). Defaults to 0.95.
        nesterov: Whether the update looks ahead. Defaults to True.
        scaling: $f$. "original" is $\sqrt{\max(1, \text{columns} / \text{rows})}$; a number $\rho$
            is $\rho \sqrt{\max(\text{rows}, \text{columns})}$, which makes the root mean square of
            updates about $\rho$ in each matrix; "match_rms_adamw", the default, is the same with
            0.2, the usual size of AdamW's, so that one learning rate does for all variables.
        ns_steps: Number of iterations, integer >= 1. Defaults to 5.
        ns_coefficients: $a, b, c$, or a list of three numbers for each iteration. Defaults to
            [3.4445, -4.775, 2.0315].
        norm: What $u$ is divided by, so that its singular values are at most 1. "frobenius", the
            default, is the cheapest, and makes them smaller than need be. "schatten" is
            $\sqrt{\|A\|_F}$, which is nearer to the largest of them, with $A = u u^\top$, or
            $u^\top u$ if there are more rows than columns. "spectral" is the largest itself, by a
            singular value decomposition. "aol" divides each row $i$, or column if there are more
            rows than columns, by the root of $\sum_j |A_{ij}|$.
        epsilon: $\epsilon > 0$. Defaults to 1e-7.
        bias_correction: Whether $m$ is divided by $1 - \mu^t$, where $t$ counts steps from 1, or in
            the look ahead $m$ by $1 - \mu^{t+1}$ and $g$ by $1 - \mu^t$. Defaults to False.
        adaptive: Whether $X$ is multiplied by the sum of the elements of $u \odot X$, about the
            sum of the singular values of $u$, so that steps grow with gradients. Defaults to False.
        products: Data type of the iteration: "bfloat16", "float32", or None, the default, for that
            of the slots. The first is faster on accelerators that have it, and all that is needed.
        others: Rule for all other variables: an optimizer of this package, its name or
            configuration; None refuses models with other variables. Its only option may be
            `weight_decay`, instead of Muon's. Of wrappers, `keras_tfopt.AdamW` with
            `scale_by_learning_rate=True` is taken. Defaults to "nadam_w".
        others_factor: Learning rate of `others` as a multiple >= 0 of Muon's. Defaults to None: the
            ratio of both at the start, if `others` is an optimizer with a number for its learning
            rate, as Muon is; 1 if it is a name. Schedules tell no ratio, so it has to be given.
        other_variables: Matrices to leave to `others`: regular expressions that are searched in
            paths, variables, or functions of a variable, one or a list. The default is embeddings,
            biases, and `gamma` and `beta` of normalizations. The head of a model is often added.
        stack_axes: Axes that count matrices: a dictionary from regular expressions for paths to an
            axis or a list. Of what remains, the last axis is columns. `{"query/kernel": 1}` is
            one matrix for each head of `keras.layers.MultiHeadAttention`. Defaults to None.
        **base: Options of every optimizer, see `keras_tfopt.Rule`. A `weight_decay` shrinks all
            variables by $\eta \lambda x$, unless `others` has one.

    Slots: `m`, the momentum, of the variable's shape; of other variables, those of `others`,
    `m` and `v` of the default.

    Row gradients: of matrices as if dense, of other variables as with `others`.

    Example:
    >>> optimizer = keras_tfopt.Muon(
    ...     0.02, scaling="original", weight_decay=0.01, others=keras_tfopt.Adam(3e-4, 0.9, 0.95)
    ... )

    Reference: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024), and
    Liu et al., "Muon is Scalable for LLM Training" (2025), for the scaling by 0.2.

    Differences: from the author's implementation, the iteration is in full precision by default,
    and $f$ of a convolution is that of its matrix. `torch.optim.Muon` takes matrices only, has a
    weight decay of 0.1, and divides by the larger of the norm and $\epsilon$.
    `optax.contrib.muon` corrects the bias; its `preconditioning` is `norm` here. Its
    `adaptive` has one sum for all matrices of a stack, and its `ns_steps` has no effect where each
    iteration has coefficients; here their numbers have to agree.
    `keras.optimizers.Muon` has a form of Adam inside, whose arguments are its own.
    """

    learning_rate: Any = 0.001
    momentum: float = within(0, 1, default=0.95, right_open=True)
    nesterov: bool = flag(default=True)
    scaling: Any = field(check_scaling, default="match_rms_adamw")
    ns_steps: int = integer(1, default=5)
    ns_coefficients: Any = field(check_coefficients, default=[3.4445, -4.775, 2.0315])
    norm: str = field(one_of(*NORMS), default="frobenius")
    epsilon: float = within(0, default=1e-7, left_open=True)
    bias_correction: bool = flag(default=False)
    adaptive: bool = flag(default=False)
    products: Any = field(one_of(None, "bfloat16", "float32"), default=None)
    others: Any = field(check_others, default="nadam_w")
    others_factor: Any = within(0, default=None, fixed=True)
    other_variables: Any = field(check_choice, default=NOT_MATRICES)
    stack_axes: Any = field(check_axes, default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_iterations(self.ns_steps, self.ns_coefficients)

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        known = {"lr": lr, **self._inner_scalars(lr, step)}
        if self.bias_correction and self.nesterov:
            ahead = self.momentum / (1 - self.momentum ** (step + 1))
            known |= {"ahead": ahead, "present": (1 - self.momentum) / (1 - self.momentum**step)}
        elif self.bias_correction:
            known |= {"ahead": 1 / (1 - self.momentum**step)}
        return known

    def _update_matrix(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        m = lerp(s.m, g, 1 - self.momentum)
        if not self.nesterov:
            u = t.ahead * m if self.bias_correction else m
        elif self.bias_correction:
            u = t.ahead * m + t.present * g
        else:
            u = lerp(m, g, 1 - self.momentum)
        rows, columns, direction = self._direction(u, t)
        return add_scaled(x, direction, -t.lr * self._scale(rows, columns), reuse=True), {"m": m}

    def _direction(self, u: Any, t: Any) -> tuple[int, int, Any]:
        """Return rows, columns and the orthogonal update of a variable, or of several stacked."""
        first = len(u.shape) - t.rank
        stack = [*range(first), *(first + axis for axis in t.stack_axes)]
        order = [*stack, *(axis for axis in range(len(u.shape)) if axis not in stack)]
        turned = ops.transpose(u, order)
        shape = [int(turned.shape[n]) for n in range(len(order))]
        columns, rows = shape[-1], math.prod(shape[len(stack) : -1])
        u = reshaped(turned, (-1, rows, columns) if stack else (rows, columns))
        how = (self.ns_coefficients, self.norm, self.epsilon, self.products)
        x = orthogonalized(u, self.ns_steps, *how)
        if self.adaptive:
            x = x * ops.sum(u * x, axis=(-2, -1), keepdims=True)
        x = ops.transpose(reshaped(x, shape), [order.index(n) for n in range(len(order))])
        return rows, columns, x

    def _scale(self, rows: int, columns: int) -> float:
        if self.scaling == "original":
            return math.sqrt(max(1, columns / rows))
        rms = 0.2 if self.scaling == "match_rms_adamw" else self.scaling
        return rms * math.sqrt(max(rows, columns))
