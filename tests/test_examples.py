"""Examples in docstrings run on PyTorch, with a small model and its data as given."""

import contextlib
import doctest
import inspect
import io

import keras
import numpy as np
import pytest

import keras_tfopt
from integration.documentation import names
from tests.helpers.stepping import policy, several_only
from tests.test_pages import for_verbs, of_keras2

CHECKER = doctest.OutputChecker()
WITH_AVERAGES = (
    "keras_tfopt.averaged",
    "keras_tfopt.callbacks.EvaluateWithAverages",
    "keras_tfopt.callbacks.RefreshBatchNormalization",
    "keras_tfopt.callbacks.SwapEMAWeights",
)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

MARKS = {
    "keras_tfopt.addons.MultiOptimizer": several_only,
}

pytestmark = pytest.mark.backends("torch", reason="one backend is enough")


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
                    yield pytest.param(path, examples, id=path, marks=MARKS.get(path, []))


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


@pytest.mark.parametrize(("path", "examples"), documented())
def test_example(path, examples, tmp_path, monkeypatch):
    if path.endswith(".plot"):
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    # Compiling takes longer than the few steps of an example. Examples may change the policy.
    with keras_tfopt.engine.plain(), policy(keras.config.dtype_policy()):
        run(path, examples)


def run(path, examples):
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
