"""The argument `global_step`: rules read the number of the step from a variable of the program."""

import inspect

import keras
import pytest

from tests.cases import RULES
from tests.helpers.options import Expected, follow, gradients, initial
from tests.helpers.stepping import Runner, every_mode

CASES = [case for case in RULES if "global_step" in inspect.signature(case.cls).parameters]


@every_mode
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_rule_reads_the_number_of_the_step_from_the_variable(case, mode):
    """The program starts it above zero, leaves it unchanged, and makes it jump."""
    variable = keras.Variable(13, dtype="int32", trainable=False)
    runner = Runner(case.make(global_step=variable), initial(), mode)
    expected = Expected(case, initial())
    for done, grads in zip((13, 13, 14, 40), gradients(4), strict=True):
        variable.assign(done)
        expected.reference.global_step = done
        follow(runner, expected, [grads], 8 * case.tolerance())
        assert int(variable) == done
