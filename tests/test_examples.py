"""Examples in docstrings run on JAX, with a small model and its data as given."""

import contextlib
import doctest
import inspect
import io

import keras
import numpy as np
import pytest

import keras_tfopt
from integration.documentation import names
from tests.stepping import several_only
from tests.test_pages import for_verbs, of_keras2

CHECKER = doctest.OutputChecker()
WITH_AVERAGES = (
    "keras_tfopt.averaged",
    "keras_tfopt.callbacks.EvaluateWithAverages",
    "keras_tfopt.callbacks.RefreshBatchNormalization",
    "keras_tfopt.callbacks.SwapEMAWeights",
)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

pytestmark = pytest.mark.backends("jax", reason="one backend is enough")


def documented():
    """Yield (path, examples) of each public name, and of each method of a public class."""
    for entry in names.public():
        items = {entry.path: entry.item}
        if inspect.isclass(entry.item):
            items |= {f"{entry.path}.{name}": item for name, item in vars(entry.item).items()}
        for path, item in items.items():
            if inspect.isclass(item) or inspect.isfunction(item):
                examples = doctest.DocTestParser().get_examples(inspect.getdoc(item) or "")
                if examples:
                    marks = [several_only] if path.endswith("MultiOptimizer") else []
                    yield pytest.param(path, examples, id=path, marks=marks)


def given(path):
    """Return the variables that examples take as given."""
    found = for_verbs()
    model, x, y = found["model"], found["x"], found["y"]
    if path in WITH_AVERAGES:
        if path.endswith("BatchNormalization"):
            x, y = np.ones((2048, 3), "f"), np.ones((2048, 1), "f")
            model = keras.Sequential([keras.layers.BatchNormalization(), model])
        model.compile(keras_tfopt.Adam(0.01, use_ema=True), "mse")
        model.train_on_batch(x, y)
    model.save("model.keras")  # in an empty folder
    if path == "keras_tfopt.migrate.load_state":
        model = of_keras2()["model"]
    gradients = [np.ones(variable.shape, "f") for variable in model.trainable_variables]
    return {
        **found,
        **{"model": model, "x": x, "y": y},
        "addons": keras_tfopt.addons,
        "gradients": gradients,
        "gradients_of_regularizer": gradients,
        "keras": keras,
        "keras_tfopt": keras_tfopt,
        "layers": keras.layers,
        "np": np,
        "ops": keras.ops,
        "optimizer": keras_tfopt.LazyAdam(),
        "table": keras.Variable(np.ones((10, 2), "f")),
        "variables": model.trainable_variables,
        "x_val": x,
        "y_val": y,
    }


@pytest.fixture
def policy():
    """Restore Keras's policy of data types, which examples may change."""
    before = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(before)


@pytest.mark.parametrize(("path", "examples"), documented())
def test_example(path, examples, tmp_path, monkeypatch, policy):
    if path.endswith(".plot"):
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    values = given(path)
    for example in examples:
        code, printed = compile(example.source, path, "single"), io.StringIO()
        if example.want.startswith("ValueError: "):
            with pytest.raises(ValueError) as error:
                exec(code, values)
            assert str(error.value) == example.want.removeprefix("ValueError: ").strip()
            continue
        with contextlib.redirect_stdout(printed):
            exec(code, values)
        if example.want:
            assert CHECKER.check_output(example.want, printed.getvalue(), FLAGS), printed.getvalue()
