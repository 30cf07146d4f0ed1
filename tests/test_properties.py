"""Properties that hold for all legal arguments, with examples that hypothesis generates.

The examples are the same in every run. The error message of an argument says what is legal. These
tests read the message, and check that it is true.
"""

import datetime
import math
import re

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from keras_tfopt.engine.state.state import Like
from tests.cases import CASES, RULES, every_case
from tests.cells import EXHAUSTIVE, exhaustive
from tests.helpers.compare import assert_close
from tests.helpers.stepping import Runner, through_json

examples = settings(
    max_examples=100 if EXHAUSTIVE else 8,
    derandomize=True,
    database=None,
    deadline=datetime.timedelta(seconds=60),  # the first example of a mode is compiled
)


def each_of(cases):
    return pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in cases])


# Programs


@pytest.mark.spread
@each_of([case for case in RULES if case.scope == "variable"])
def test_variables_of_one_shape_share_a_program(case):
    """They do if their facts are equal."""
    optimizer = case.build()
    facts = [optimizer.facts_of(Like((4, 3), "float32", f"{name}/kernel")) for name in "ab"]
    assert facts[0] == facts[1]


# Legal arguments


LARGEST = float(np.finfo("float32").max)


class Legal:
    """The legal values of an argument, read from its error message."""

    def __init__(self, case, name):
        with pytest.raises((TypeError, ValueError)) as error:
            case.make(**{name: {"nonsense"}})
        self.text = str(error.value).split("Received:")[0]
        assert f"`{name}`" in self.text, self.text
        self.interval = re.search(r"in ([\[(])([-\w.]+), ([-\w.]+)([\])])", self.text)
        self.above = re.search(r"number (>=?) ([\d.]+)", self.text)
        self.integer = re.search(r"integer >= (\d+)", self.text)
        self.is_bool = "True or False" in self.text
        self.is_bound = bool(self.interval or self.above or self.integer)

    def limits(self):
        """Return the lowest and the highest number, and whether each of them is excluded."""
        if self.interval:
            left, low, high, right = self.interval.groups()
            return float(low), float(high), left == "(", right == ")"
        sign, low = self.above.groups()
        return float(low), math.inf, sign == ">", True

    def values(self):
        if self.is_bool:
            return st.booleans()
        if self.integer:
            lowest = int(self.integer[1])
            return st.integers(lowest, lowest + 10**6)
        low, high, left_open, right_open = self.limits()
        return st.floats(
            max(low, -LARGEST),
            min(high, LARGEST),
            exclude_min=left_open and low != -math.inf,
            exclude_max=right_open and high != math.inf,
        ).filter(lambda value: not self.rounds_to_a_limit(value))

    def rounds_to_a_limit(self, value):
        low, high, left_open, right_open = self.limits()
        rounded = float(np.float32(value))
        return (left_open and rounded == low == 0) or (right_open and rounded == high)

    def others(self):
        """Return a strategy of numbers that are not legal and values that are no numbers."""
        wrong = [
            st.text().filter(lambda text: not text.isspace()),
            st.lists(st.floats(), min_size=1),
            st.complex_numbers(),
        ]
        if self.is_bool:
            return st.one_of(*wrong, st.floats(), st.integers())
        wrong += [st.booleans(), st.sampled_from([math.nan, math.inf, -math.inf])]
        if self.integer:
            wrong += [st.floats(), st.integers(max_value=int(self.integer[1]) - 1)]
            return st.one_of(*wrong)
        low, high, left_open, right_open = self.limits()
        left_open, right_open = left_open and low != -math.inf, right_open and high != math.inf
        wrong.append(st.floats(max_value=max(low, -LARGEST), exclude_max=not left_open))
        wrong.append(st.floats(min(high, LARGEST), exclude_min=not right_open))
        return st.one_of(*wrong)


def arguments_of(case):
    """Return {name: Legal} of the arguments that are numbers or booleans."""
    names = [name for name in case.own_arguments if name != "inner_optimizer"]
    legal = {name: Legal(case, name) for name in names}
    return {name: each for name, each in legal.items() if each.is_bound or each.is_bool}


BASE = ("weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "loss_scale_factor")


def random_arguments(case):
    """Return a strategy of legal arguments of a case, including options of all optimizers."""
    own = {name: each.values() for name, each in arguments_of(case).items()}
    assert own or not case.own_arguments.keys() - {"inner_optimizer", "skip_list"}
    options = {name: Legal(case, name).values() for name in BASE if name not in own}
    clips = [name for name in options if "clip" in name]
    chosen = st.sampled_from([None, *clips]).flatmap(
        lambda clip: st.fixed_dictionaries(
            {},
            optional={
                **own,
                **{n: s for n, s in options.items() if n == clip or n not in clips},
                "learning_rate": Legal(case, "learning_rate").values(),
                "gradient_accumulation_steps": st.integers(2, 100),
                "master_weights": st.booleans(),
                "maximize": st.booleans(),
                "name": st.text(st.characters(categories=["L", "N"]), min_size=1),
            },
        )
    )
    averages = st.fixed_dictionaries(
        {"use_ema": st.just(True), "ema_momentum": st.floats(0, 1)},
        optional={"ema_overwrite_frequency": st.integers(1, 10**6)},
    )
    return st.builds(
        lambda arguments, more: {**arguments, **more}, chosen, st.one_of(st.just({}), averages)
    )


@pytest.mark.spread
@every_case("case")
def test_any_legal_configuration_comes_back(case):
    @examples
    @given(random_arguments(case))
    def check(arguments):
        try:
            optimizer = case.make(**arguments)
        except ValueError as error:
            assert str(error).startswith("With `")  # legal values that exclude each other
            reject()
        again = through_json(optimizer)
        assert type(again) is case.cls
        assert again.get_config() == optimizer.get_config()
        config = optimizer.get_config()
        config = {**config.get("inner_optimizer", {}).get("config", {}), **config}
        for name, value in arguments.items():
            if name == "learning_rate":
                value = float(np.float32(value))
            found = config.get(name, False) if name == "maximize" else config[name]
            assert found == value and type(found) is type(value), name

    check()


@pytest.mark.spread
@every_case("case")
def test_illegal_values_are_refused_by_the_name_of_the_argument(case):
    wrong = {name: legal.others() for name, legal in arguments_of(case).items()}
    if not wrong:
        pytest.skip("no argument of its own is a number or a boolean")

    @examples
    @given(st.sampled_from(sorted(wrong)), st.data())
    def check(name, data):
        value = data.draw(wrong[name])
        with pytest.raises((TypeError, ValueError)) as error:
            case.make(**{name: value})
        assert f"`{name}`" in str(error.value)

    check()


# Symmetries


POWERS = st.integers(-6, 6).map(lambda exponent: 2.0**exponent)


@pytest.mark.spread("torch")
@each_of([case for case in RULES if case.step_scales_with_power is not None])
@pytest.mark.parametrize("mode", ["eager", exhaustive("compiled")])
def test_gradients_of_another_scale(case, mode):
    """Factors are powers of two, which are exact. So the steps are the same to the bit."""
    start = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    plan = np.random.default_rng(1).normal(size=(4, 3, 4)).astype("float32")
    runner = Runner(case.make(**case.scaling_arguments), {"kernel": start}, mode)
    fresh = runner.snapshot()

    def moves(scale, rate):
        for variable, value in zip((*runner.variables, *runner.optimizer.variables), fresh):
            variable.assign(value)
        runner.optimizer.learning_rate = rate
        for g in plan:
            runner.step({"kernel": scale * g})
        return runner.values["kernel"]

    once = moves(1.0, 0.25)
    assert np.any(once != start)  # not all: steps of equal size may add up to nothing

    @examples
    @given(POWERS)
    def check(scale):
        # The larger the gradient, the smaller the rate.
        assert np.array_equal(moves(scale, 0.25 / scale**case.step_scales_with_power), once)

    check()


@st.composite
def shapes(draw):
    """Two shapes of 12 entries, and where to cut them in two."""
    pair = draw(st.tuples(*[st.sampled_from([(12,), (3, 4), (2, 6), (2, 3, 2), (1, 12, 1)])] * 2))
    return *pair, draw(st.integers(1, 11)), draw(st.integers(0, 99))


@pytest.mark.spread("torch")  # JAX compiles each operation for each of the shapes
@each_of([case for case in RULES if case.scope in ("element", "model")])
def test_elementwise_rules_do_not_depend_on_shapes(case):
    """A variable moves alike in another shape, or cut into two variables."""

    @examples
    @given(shapes())
    def check(drawn):
        one, other, cut, seed = drawn
        rng = np.random.default_rng(seed)
        x, plan = rng.normal(size=12), rng.normal(size=(3, 12))
        layouts = {
            "one": lambda v: {"kernel": v.reshape(one)},
            "other": lambda v: {"kernel": v.reshape(other)},
            "cut": lambda v: {"first/kernel": v[:cut], "second/kernel": v[cut:]},
        }
        ends = []
        for lay_out in layouts.values():
            runner = Runner(case.make(), lay_out(x), "eager", "float64")
            for g in plan:
                runner.step(lay_out(g))
            ends.append(np.concatenate([v.ravel() for v in runner.values.values()]))
        assert np.all(ends[0] != x)
        for end in ends[1:]:
            assert_close(end, ends[0], 1e-13 * (1 if case.scope == "element" else 1e3), "entries")

    check()


@pytest.mark.spread
def test_all_kinds_of_messages_were_understood():
    """`Legal` understands the message of every argument that is a number."""
    for case in CASES:
        known = arguments_of(case)
        for name, default in case.own_arguments.items():
            is_number = isinstance(default, bool | int | float)
            assert not is_number or name in known, f"{case.name}: {name}"
