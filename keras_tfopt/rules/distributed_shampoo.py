from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.checks import check_bool, one_of
from keras_tfopt.engine import Slot, add_scaled, conditional, lerp
from keras_tfopt.fields import field, flag, integer, within
from keras_tfopt.rule import Rule, register, zeros
from keras_tfopt.rules.block_matrices import preconditioned
from keras_tfopt.rules.blocks import Blocks, merged_shape, norms
from keras_tfopt.rules.moments import over_root
from keras_tfopt.rules.preconditioning import decayed, is_always, whole_root


@register
class DistributedShampoo(Rule):
    r"""Shampoo of today: averaged preconditioners of blocks, with the step sizes of another method.

    Neighboring axes of a variable are merged, and long ones are cut into blocks:

    $$
    \begin{aligned}
    L_i &\leftarrow \beta_2 L_i + (1 - \beta_2) g_i g_i^\top \\
    H_i &\leftarrow (L_i / (1 - \beta_2^t) + \epsilon I)^{-1 / (2n)}
        && \text{if a new root is due} \\
    \hat m &= \frac{\beta_3 m + (1 - \beta_3) g}{1 - \beta_3 \beta_1^{t - 1}}, \qquad
    m \leftarrow \beta_1 m + (1 - \beta_1) g \\
    p &= \hat m \times_1 H_1 \times_2 \dots \times_n H_n \\
    x &\leftarrow x - \eta \frac{\lVert q \rVert}{\lVert p \rVert} p
    \end{aligned}
    $$

    at step t, for a block with n axes, where $g_i$ is the gradient as a matrix with the i-th axis
    as rows and all others as columns, $\times_i$ multiplies the i-th axis by a matrix, and $q$ is
    the step of the method that is grafted, in this block: $\hat m$ for "sgd", or
    $\hat m / (\sqrt{\hat v} + \epsilon_g)$ with the sum of all $g^2$ for "adagrad", their average
    for "rmsprop", and the average without its bias for "adam". Before the first root, the step is
    $q$ itself. Without grafting it is $\eta p$, with $H_i = I$ at first. With $\beta_2 = 1$, $L_i$
    is a sum and not divided.

    With `eigenvalue_corrected`, eigenvectors $Q_i$ of $L_i$, by ascending eigenvalues, take the
    place of roots, and the direction is Adam's step in their basis, as in SOAP: with
    $R(a) = a \times_1 Q_1^\top \dots \times_n Q_n^\top$ and its inverse $R^{-1}$,

    $$
    E \leftarrow \beta_2 E + (1 - \beta_2) R(g)^2, \qquad
    p = R^{-1}\left(\frac{R(\hat m)}{\sqrt{E / (1 - \beta_2^t)} + \epsilon}\right)
    $$

    Args:
        learning_rate: $\eta \geq 0$, number, schedule or callable. Defaults to 0.01.
        beta_1: Decay of the average of gradients, in [0, 1). Defaults to 0.9.
        beta_2: Decay of the preconditioners, in (0, 1]. Defaults to 1: sums.
        beta_3: $\beta_3$ in [0, 1), the weight of the old average in the direction; less than
            `beta_1` for a look ahead as Nesterov's. None, the default, is `beta_1`.
        epsilon: $\epsilon > 0$. Defaults to 1e-12.
        max_preconditioner_dim: Largest length of a block, integer >= 1. Defaults to 1024.
        precondition_frequency: Integer >= 1: new roots are due in the steps that it divides, after
            the first root. Nothing is decomposed in between: a gradient in directions that are new
            to $L_i$ becomes up to $\epsilon^{-1/2}$ times as long, a million times by default, so
            give `grafting` or a larger `epsilon`. Defaults to 1.
        start_preconditioning_step: Step of the first root, integer >= 1. None, the default, is
            `precondition_frequency`.
        use_bias_correction: Whether averages are divided by $1 - \beta_3 \beta_1^{t - 1}$ and
            $1 - \beta_2^t$. Defaults to True.
        grafting: "sgd", "adagrad", "rmsprop", "adam", or None, the default, for no grafting.
        grafting_beta_2: Decay of the grafted method's second moment, in [0, 1). Defaults to 0.999.
        grafting_epsilon: $\epsilon_g \geq 0$. Defaults to 1e-10.
        exponent_override: Number > 0 instead of $1 / (2n)$, for all axes; or None.
        target_parameter_dimensionality: Number of axes from which none are merged, integer >= 1.
            Otherwise neighbors are merged, from the left, while their product is at most
            `max_preconditioner_dim`. Defaults to 1: a small matrix is one vector, with one matrix
            for all of its entries. With 2, it has one matrix for rows and one for columns.
        use_iterative_root: How to take roots: True by an iteration of matrix products, where $2n$
            or 1 over `exponent_override` has to be an integer; False by eigenvalues; None, the
            default, as `keras_tfopt.matrix_inverse_pth_root` chooses.
        eigenvalue_corrected: Whether to divide by $\sqrt E$ in a basis of eigenvectors, as above,
            instead of roots. Then there is neither `exponent_override` nor
            `use_iterative_root`. Defaults to False.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `L_0`, `L_1`, ... and their roots `H_0`, `H_1`, ... or bases `Q_0`, `Q_1`, ..., of shape
    (blocks, d, d), where the last block of an axis is filled up with zeros; `E`, in blocks, if
    there are bases; `m` of the variable's shape, unless `beta_1` is 0 and `beta_3` None; `v` of
    this shape, the sum or average of the grafted method, unless that is None or "sgd".

    Row gradients: as if dense.

    Cost: blocks of one variable are decomposed in one batch. Numbers kept for a block of
    (1024, 1024) are four times its entries, besides `m` and `v`.

    A gradient with NaN, infinity, or numbers whose squares overflow raises a ValueError in eager
    steps and leaves everything as it is. Compiled steps cannot raise: the averages are spoiled for
    good. Wrap the optimizer in a `LossScaleOptimizer` where that may happen.

    Example:
    >>> optimizer = keras_tfopt.DistributedShampoo(
    ...     1e-3, beta_2=0.99, precondition_frequency=10, grafting="adam", weight_decay=0.01,
    ...     target_parameter_dimensionality=2)

    Reference: Shi et al., "A Distributed Data-Parallel PyTorch Implementation of the Distributed
    Shampoo Optimizer for Training Neural Networks At-Scale" (2023).

    Differences: from `distributed_shampoo.DistributedShampoo`, grafting is one argument, and the
    first root may be due before `precondition_frequency`; with `beta_1=0`, theirs ignores `beta_3`.
    `keras_tfopt.Shampoo`, that of `tf.contrib.opt`, keeps diagonals of long axes instead of blocks,
    divides sums by their size, and has no grafting. Keras has no such optimizer.
    """

    scope = "variable"
    second_order = True
    fused = False
    needs_finite = True

    learning_rate: Any = 0.01
    beta_1: float = within(0, 1, default=0.9, right_open=True)
    beta_2: float = within(0, 1, default=1.0, left_open=True)
    beta_3: float | None = within(0, 1, default=None, right_open=True)
    epsilon: float = within(0, default=1e-12, left_open=True)
    max_preconditioner_dim: int = integer(1, default=1024)
    precondition_frequency: int = integer(1, default=1)
    start_preconditioning_step: int | None = integer(1, default=None)
    use_bias_correction: bool = flag(default=True)
    grafting: str | None = field(one_of(None, "sgd", "adagrad", "rmsprop", "adam"), default=None)
    grafting_beta_2: float = within(0, 1, default=0.999, right_open=True)
    grafting_epsilon: float = within(0, default=1e-10)
    exponent_override: float | None = within(0, default=None, left_open=True, fixed=True)
    target_parameter_dimensionality: int = integer(1, default=1)
    use_iterative_root: bool | None = field(check_bool, default=None)
    eigenvalue_corrected: bool = flag(default=False)

    def __post_init__(self) -> None:
        exponent = self.exponent_override
        for name in ("exponent_override", "use_iterative_root"):
            if self.eigenvalue_corrected and getattr(self, name):
                raise ValueError(
                    f"With `eigenvalue_corrected=True`, there are no roots: leave `{name}` out. "
                    f"Received: {name}={getattr(self, name)!r}"
                )
        if self.use_iterative_root and exponent and not whole_root(exponent).is_integer():
            raise ValueError(
                "With `use_iterative_root=True`, 1 / exponent_override must be an integer. "
                f"Received: exponent_override={exponent!r}"
            )

    @property
    def first_root(self) -> int:
        """The step of the first root."""
        return self.start_preconditioning_step or self.precondition_frequency

    def slots(self, like: Any) -> dict[str, Slot]:
        blocks = self._blocks(like.shape)
        slots: dict[str, Slot] = {}
        if not is_always(self.beta_1, 0) or self.beta_3 is not None:
            slots |= {"m": zeros(like)}
        if self.grafting not in (None, "sgd"):
            slots |= {"v": zeros(like, signed=False)}
        for i, d in enumerate(blocks.size):
            shape = (blocks.number, d, d)
            matrix = Slot(shape, "identity", by_row=False)
            slots |= {f"L_{i}": Slot(shape, by_row=False), f"{self.matrix_name}_{i}": matrix}
        if self.eigenvalue_corrected:
            slots |= {"E": Slot((blocks.number, *blocks.size), by_row=False)}
        return slots

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        one = ops.ones_like(step)
        corrects, sums = self.use_bias_correction, is_always(self.beta_2, 1)
        return {
            "lr": lr,
            "of_m": 1 - self._beta_3 * self.beta_1 ** (step - 1) if corrects else one,
            "of_products": one if sums or not corrects else 1 - self.beta_2**step,
            "of_v": 1 - self.grafting_beta_2**step if self.grafting == "adam" else one,
        }

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        if 0 in x.shape:
            return x, {}
        blocks, new = self._blocks(x.shape), {}
        average = g
        if hasattr(s, "m"):
            m = lerp(s.m, g, 1 - self.beta_1)
            average = (m if self.beta_3 is None else lerp(s.m, g, 1 - self.beta_3)) / t.of_m
            new = {"m": m}
        direction, new_matrices = preconditioned(self, blocks, blocks.cut(average), g, s, t)
        new |= new_matrices
        if self.grafting is not None:
            grafted = average
            if hasattr(s, "v"):
                beta = 1 if self.grafting == "adagrad" else self.grafting_beta_2
                v = decayed(s.v, beta, g * g)
                grafted = over_root(average, ops.sqrt(v / t.of_v), self.grafting_epsilon)
                new |= {"v": v}
            grafted = blocks.cut(grafted)
            direction = direction * (norms(grafted) / (norms(direction) + 1e-16))
            if self.first_root > 1:
                scaled = direction
                direction = conditional(t.step < self.first_root, lambda: grafted, lambda: scaled)
        return add_scaled(x, blocks.joined(direction, x.shape), -t.lr), new

    @property
    def matrix_name(self) -> str:
        """Return the letter of the slots with bases (Q) or roots (H)."""
        return "Q" if self.eigenvalue_corrected else "H"

    @property
    def _beta_3(self) -> Any:
        return self.beta_1 if self.beta_3 is None else self.beta_3

    def _blocks(self, shape: Any) -> Blocks:
        limit = self.max_preconditioner_dim
        return Blocks(merged_shape(shape, limit, self.target_parameter_dimensionality), limit)
