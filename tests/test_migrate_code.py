"""`keras_tfopt.migrate` rewrites programs for Keras 3, and the new programs run."""

import inspect
import re
import runpy
import sys

import numpy as np
import pytest

import keras_tfopt
from keras_tfopt.engine import plain
from keras_tfopt.legacy.table import TABLE
from keras_tfopt.migrate import __main__ as command
from keras_tfopt.migrate.code.names import find
from keras_tfopt.migrate.code.rewriting import rewrite
from tests.helpers.programs import ROOT

pytestmark = pytest.mark.spread

SCRIPTS = ROOT / "tests" / "scripts"
NAMES = sorted(path.stem for path in (SCRIPTS / "before").glob("*.py"))
# {script: [(line, words of the message)]} of what the user has to decide.
LEFT = {
    "keeping_state": [(5, "`lr` must be a number"), (6, "`lr` must be a number")],
    "momentum": [(18, "can no longer be set")],
    "old_names": [(15, "momentum_decay")],
    "tf1_session": [(17, "sessions stay as they are")],
}
every_script = pytest.mark.parametrize("name", NAMES)
TORCH = pytest.mark.backends("torch", reason="one backend is enough")
TENSORFLOW = pytest.mark.backends("tensorflow", reason="about graphs of TensorFlow")


def rewritten(source):
    done = rewrite(source.encode())
    return done.code.decode(), done.findings


@every_script
def test_before_and_after(name):
    before, after = [(SCRIPTS / way / f"{name}.py").read_bytes() for way in ("before", "after")]
    done = rewrite(before)
    assert done.code.decode() == after.decode()
    expected = LEFT.get(name, [])
    assert len(done.findings) == len(expected)
    for finding, (line, words) in zip(done.findings, expected):
        assert finding.line == line and words in finding.text
    assert rewrite(after).code == after, "rewriting twice changes nothing more"


def test_there_are_ten_scripts():
    assert len(NAMES) == 10


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=TENSORFLOW if n == "tf1_session" else TORCH) for n in NAMES]
)
def test_rewritten_scripts_run(name):
    pytest.importorskip("tensorflow")
    loaded = set(sys.modules)
    with plain():
        result = runpy.run_path(str(SCRIPTS / "after" / f"{name}.py"))["result"]
    assert len(result) and np.all(np.isfinite(np.asarray(result, "float64")))
    assert not any(m.startswith("tensorflow_addons") for m in set(sys.modules) - loaded)


@TORCH
@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("addons_names", "tf1_session")])
def test_old_scripts_do_not_run(name):
    """A script that runs in Keras 3 anyway would test nothing."""
    pytest.importorskip("tensorflow")
    with pytest.raises((AttributeError, ImportError, TypeError, ValueError)):
        runpy.run_path(str(SCRIPTS / "before" / f"{name}.py"))


@pytest.mark.parametrize(
    ("before", "after"),
    (
        ("Adam(lr=0.1)", "Adam(learning_rate=0.1)"),
        ("Adam(0.1, decay=0.)", "Adam(0.1)"),
        ("Adam(\n    lr=0.1,  # high\n)", "Adam(\n    learning_rate=0.1,  # high\n)"),
        ("Adam(epsilon=None, beta_1=0.5)", "Adam(beta_1=0.5)"),
        ("Adam(1)", "Adam(1.0)"),
        ("SGD(0.1, 0)", "SGD(0.1, 0.0)"),
        (
            "SGD(decay=0.1)",
            "SGD(learning_rate=keras.optimizers.schedules.InverseTimeDecay(0.01, 1, 0.1))",
        ),
        ("Adam(clipvalue=0.5, jit_compile=True)", "Adam(clipvalue=0.5)"),
        ("Adam.from_config(config)", "Adam.from_config(config)"),
        ("Lion()", "Lion(learning_rate=0.0001)"),
        ("Lion(0.1)", "Lion(0.1)"),
        ("partial(Adam, lr=0.1)", "partial(Adam, learning_rate=0.1)"),
        ("partial(legacy.Adam)", "partial(keras_tfopt.Adam, epsilon=1e-7)"),
        ("tf.optimizers.SGD(lr=0.1)", "keras.optimizers.SGD(learning_rate=0.1)"),
        ("tf.compat.v2.optimizers.SGD(lr=0.1)", "keras.optimizers.SGD(learning_rate=0.1)"),
        ("adam.Adam(lr=0.1)", "keras_tfopt.Adam(learning_rate=0.1, epsilon=1e-7)"),
        ("optimizer_v2.adam.Adam()", "keras_tfopt.Adam(epsilon=1e-7)"),
        ("rates.CosineDecay(1.0, 5)", "keras.optimizers.schedules.CosineDecay(1.0, 5)"),
        ("ada.Adagrad(0.1)", "keras_tfopt.migrate.Adagrad(0.1, epsilon_in_root=False)"),
        ("legacy.Adam(epsilon=1e-8)", "keras_tfopt.Adam(epsilon=1e-8)"),
        ("legacy.RMSprop(0.1, 0.9, 0.9)", "keras_tfopt.migrate.RMSprop(0.1, 0.9, 0.9)"),
        (
            "legacy.RMSprop(0.1, **more)",
            "keras_tfopt.migrate.RMSprop(0.1, epsilon_in_root=False, **more)",
        ),
        (
            "legacy.Adagrad(\n    0.1,\n    0.2,\n)",
            "keras_tfopt.migrate.Adagrad(\n    0.1,\n    0.2,\n    epsilon_in_root=False,\n)",
        ),
    ),
)
def test_arguments(before, after):
    head = (
        "from functools import partial\nimport keras\nimport tensorflow as tf\n"
        "from keras.optimizers import SGD, Adam, Lion, legacy\n"
        "from tensorflow.python.keras.optimizer_v2 import adam\n"
        "from keras.optimizers import optimizer_v2\n"
        "from keras.optimizer_v2 import learning_rate_schedule as rates\n"
        "import keras.optimizers.legacy.adagrad as ada\n\n"
    )
    code, findings = rewritten(f"{head}x = {before}  # why\n")
    assert code.endswith(f"\nx = {after}  # why\n")
    assert not findings or "more" in before


@pytest.mark.parametrize(
    ("line", "words"),
    (
        ("keras.optimizers.Adam(**more)", "are not seen"),
        ("keras.optimizers.Adam(clipnorm=1.0, clipvalue=0.5)", "one of"),
        ("keras.optimizers.SGD(0.1, 0.9, 1e-6)", "order of arguments"),
        ("keras.optimizers.legacy.Optimizer('x')", "keras_tfopt.Rule"),
        ("class Own(keras.optimizers.Optimizer): pass", "keras_tfopt.Rule"),
        ("model.optimizer.minimize(loss, var_list=[x])", "no `minimize`"),
        ("model.optimizer.set_weights(weights)", "load_state"),
        ("grads = scaled.get_unscaled_gradients(grads)", "divides gradients by the scale"),
        (
            "model.optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)",
            "sums the gradients of replicas",
        ),
        ("keras.optimizers.legacy.RMSprop(momentum=m)", "epsilon_in_root"),
        ("x = {'rmsprop': keras.optimizers.legacy.RMSprop}", "calls of this class need eps"),
        ("import tf_keras", "Keras 2"),
        ("from keras.optimizers import *", "one by one"),
        ("import tensorflow_addons as tfa; tfa.optimizers.Missing()", "no 'Missing'"),
        ("import tensorflow as tf; tf.contrib.opt.MovingAverageOptimizer(x)", "MovingAverage,"),
        (
            "import tensorflow as tf; tf.contrib.layers.optimize_loss(x, s, 0.1, 'SGD')",
            "`minimize`",
        ),
        ("import tensorflow as tf; tf.contrib.estimator.clip_gradients_by_norm(o, 1)", "clipnorm"),
        ("import tensorflow.compat.v1 as tf; tf.tpu.CrossShardOptimizer(o)", "leave it out"),
        ("import tensorflow as tf; tf.train.exponential_decay(0.1, s, 5, 0.9)", "ExponentialDecay"),
        ("import tensorflow as tf; isinstance(o, tf.train.Optimizer)", "tf.compat.v1.train"),
        ("import tensorflow as tf; tf.contrib.opt.Nonsense(3)", "nothing of this name"),
        ("model.optimizer._decayed_lr(float)", "`learning_rate`"),
        ("model.optimizer._hyper['decay']", "in attributes"),
        ("keras.mixed_precision.experimental.Policy('x')", "keras.mixed_precision"),
    ),
)
def test_messages_about_what_the_user_has_to_decide(line, words):
    source = f"import keras\n\n{line}\n"
    code, findings = rewritten(source)
    assert [finding.line for finding in findings] == [3] and words in findings[0].text
    if "legacy.RMSprop" not in line:
        assert code == source


@pytest.mark.parametrize(
    ("before", "after"),
    (
        ("scaled.get_scaled_loss(loss)", "scaled.scale_loss(loss)"),
        (
            "opt.apply_gradients(zip(g, v), name='step', experimental_aggregate_gradients=True)",
            "opt.apply_gradients(zip(g, v))",
        ),
        (
            "model.optimizer.apply_gradients(pairs, skip_gradients_aggregation=False)",
            "model.optimizer.apply_gradients(pairs)",
        ),
    ),
)
def test_methods(before, after):
    head = "import keras\n\nopt = keras.optimizers.Adam()\n"
    assert rewritten(f"{head}{before}\n") == (f"{head}{after}\n", [])


def test_classes_of_tensorflow_1_that_are_named_and_not_called():
    line = "class Net:\n    cls = tf.train.MomentumOptimizer\n"
    code, findings = rewritten(f"import tensorflow as tf\n{line}")
    assert "cls = keras_tfopt.Momentum\n" in code
    assert [f.line for f in findings] == [3] and "other arguments" in findings[0].text
    code, findings = rewritten(f"import tensorflow as tf\n{line}opt.minimize(loss)\n")
    assert "cls = keras_tfopt.legacy.MomentumOptimizer\n" in code and not findings


def test_functions_of_contrib_opt():
    call = "tf.contrib.opt.{}(tf.train.AdamOptimizer)"
    new = "keras_tfopt.legacy.{}(keras_tfopt.legacy.AdamOptimizer)"
    name = "extend_with_decoupled_weight_decay"
    code, findings = rewritten(f"import tensorflow as tf\nx = {call.format(name)}\n")
    assert f"x = {new.format(name)}\n" in code and not findings


def test_classes_by_the_modules_of_contrib_opt():
    inside = "tf.contrib.opt.python.training.{}.{}()"
    known, unknown = inside.format("nadam_optimizer", "NadamOptimizer"), inside.format("a", "B")
    code, findings = rewritten(f"import tensorflow as tf\nx = {known}\ny = {unknown}\n")
    assert "x = keras_tfopt.Nadam()\n" in code
    assert [finding.line for finding in findings] == [3]


def test_methods_that_are_attributes():
    head = "import keras\n\nopt = keras.optimizers.Adam()\n"
    assert rewritten(f"{head}x = opt.variables()\n") == (f"{head}x = opt.variables\n", [])


def test_attributes_that_are_set_further_down():
    head = "import keras\n\nopt.lr = 1\nself.d.lr = 1e-4\n"
    source = f"{head}self.d = keras.optimizers.Adam()\nopt = keras.optimizers.Adam()\n"
    assert rewritten(source) == (source.replace("self.d.lr", "self.d.learning_rate"), [])


@pytest.mark.parametrize(
    ("given", "has_finding"),
    [("Lion", True), ("SGD, decay=0.1", True), ("SGD, lr=0.1, decay=0.1", False)],
)
def test_rates_in_partial(given, has_finding):
    """They are written there, and calls of the result may pass others."""
    head = "from functools import partial\nfrom keras.optimizers import SGD, Lion\n\n"
    code, findings = rewritten(f"{head}partial({given})\n")
    assert "learning_rate=" in code
    assert [finding.line for finding in findings] == [4] * has_finding


def test_optimizers_in_attributes():
    source = "import keras\n\nself.d = keras.optimizers.Adam()\nself.d.lr = self.e.lr = 1e-4\n"
    code, findings = rewritten(f"{source}self.d.get_weights()\nself.d.minimize(loss, [])\n")
    assert "\nself.d.learning_rate = self.e.lr = 1e-4\n[v.numpy() for v in self.d.vari" in code
    assert [finding.line for finding in findings] == [6]


@pytest.mark.parametrize(
    "assignment",
    [
        "a: keras.optimizers.Optimizer = Adam()",
        "a = b = Adam()",
        "x, a = 1, Adam()",
        "[(x, y), (a, z)] = (1, 2), (Adam(), 3)",
        "a = Adam() if fast else None",
        "a = given or Adam()",
        "f(a := Adam())",
        "a = (b := Adam())",
        "a = Adam.from_config(config)",
    ],
)
def test_forms_of_assignments(assignment):
    head = (
        f"import keras\nfrom keras.optimizers import Adam\n\n{assignment}\nx.lr = y.lr = z.lr = 1\n"
    )
    source = f"{head}a.lr = 0.1\n"
    assert rewritten(source) == (source.replace("a.lr", "a.learning_rate"), [])


@pytest.mark.parametrize(
    ("other", "args", "lines"),
    [
        ("tensorflow.keras.optimizers", "learning_rate=0.1", []),
        ("tensorflow_addons.optimizers", "lr=0.1", [6]),
        ("own_optimizers", "lr=0.1", [6]),
    ],
)
def test_a_class_that_is_imported_in_two_ways(other, args, lines):
    head = "try:\n    from keras.optimizers import AdamW\nexcept ImportError:\n"
    head += f"    from {other} import AdamW\n\n"
    code, findings = rewritten(f"{head}AdamW(lr=0.1)\n")
    assert code == f"{head}AdamW({args})\n"
    assert [finding.line for finding in findings] == lines


def test_a_backend_that_is_imported_in_two_ways():
    head = "try:\n    from keras import backend as K\nexcept ImportError:\n"
    head += "    from tensorflow.keras import backend as K\n\nK.clear_session()\n"
    code, findings = rewritten(f"{head}K.set_value(model.optimizer.lr, 0.1)\n")
    assert (code, findings) == (f"{head}model.optimizer.learning_rate = 0.1\n", [])


def test_rules_of_keras_2():
    head = "import keras\n\n\nclass Own(keras.optimizers.SGD):\n"
    source = f"{head}    def _resource_apply_dense(self, grad, var): ...\n"
    code, findings = rewritten(source)
    assert code == source and [finding.line for finding in findings] == [5]
    assert "write a keras_tfopt.Rule" in findings[0].text
    assert not rewritten(source.replace("_resource_apply_dense", "update_step"))[1]


def test_other_objects_with_these_names_stay():
    source = (
        "from torch.optim import Adam\n\n\nclass SGD:\n    lr = 1\n\n\n"
        "x = [Adam(p, lr=0.1), SGD(), LAMB(lr=1), torch.optim.SGD(p, lr=1).lr]\n"
    )
    assert rewritten(source) == (source, [])


@pytest.mark.parametrize(
    "name", [n for n in TABLE if str(find(f"tensorflow.train.{n}", False).new).count(".") == 1]
)
def test_rules_have_the_defaults_of_tensorflow_1(name):
    """So arguments that a program leaves out need no rewriting."""
    row, cls = TABLE[name], find(f"tensorflow.train.{name}", False).new.rpartition(".")[2]
    ours = inspect.signature(getattr(keras_tfopt, cls)).parameters
    for theirs, default in row.arguments.items():
        known = {"beta1": "beta_1", "beta2": "beta_2", **row.renamed}.get(theirs, theirs)
        if known in ours and known != "name" and default is not inspect.Parameter.empty:
            assert ours[known].default == default, known


# ---- The command -------------------------------------------------------------------------------


OLD = "from keras.optimizers import Adam\n\nopt = Adam(lr=0.1)\n"
NEW = OLD.replace("lr=", "learning_rate=")


def test_nothing_is_written_unasked(tmp_path, capsys):
    (tmp_path / "a.py").write_text(OLD)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "b.py").write_text(OLD)
    assert command.main([str(tmp_path)]) == 1
    assert command.main([str(tmp_path), "--diff"]) == 1
    out, err = capsys.readouterr()
    assert "-opt = Adam(lr=0.1)\n+opt = Adam(learning_rate=0.1)\n" in out
    assert "1 of 1 files to be rewritten" in err
    assert (tmp_path / "a.py").read_text() == OLD
    assert command.main([str(tmp_path), "--write"]) == 0
    assert (tmp_path / "a.py").read_text() == NEW
    assert command.main([str(tmp_path / "a.py")]) == 0
    assert (tmp_path / ".hidden" / "b.py").read_text() == OLD


def test_the_status_is_1_if_the_user_has_to_decide(tmp_path, capsys):
    file = tmp_path / "a.py"
    file.write_text(OLD + "opt.minimize(loss)\n")
    assert command.main([str(file), "--write"]) == 1
    assert f"{file}:4: Keras 3 has no `minimize`" in capsys.readouterr().out
    assert file.read_text() == NEW + "opt.minimize(loss)\n"


def test_lines_are_those_of_the_file_as_it_is(tmp_path, capsys):
    file, lines = tmp_path / "a.py", []
    last = "layers.optimize_loss(loss, step, 0.1, opt)"
    file.write_text(
        "from tensorflow.contrib import layers\n"
        "from tensorflow.contrib.opt import AdamWOptimizer\n"
        "opt = AdamWOptimizer(0.1, 0.1)\n"
        f"opt.minimize(loss)\n{last}\n"
    )
    for options in ([], ["--write"], []):
        assert command.main([str(file), *options]) == 1
        (said,) = re.findall(r"a\.py:(\d+): make an optimizer", capsys.readouterr().out)
        assert file.read_text().splitlines()[int(said) - 1] == last
        lines.append(said)
    assert lines[0] != lines[1] == lines[2]


def test_a_syntax_error_stops_all(tmp_path, capsys):
    (tmp_path / "a.py").write_text(OLD)
    (tmp_path / "b.py").write_text("x = 1\nprint 'hello'\n")
    assert command.main([str(tmp_path), "--write"]) == 2
    assert re.search(r"b\.py:2:\d+: cannot be parsed", capsys.readouterr().err)
    assert (tmp_path / "a.py").read_text() == OLD


def test_a_path_that_is_not_there(tmp_path, capsys):
    assert command.main([str(tmp_path / "none")]) == 2
    assert "nothing at" in capsys.readouterr().err


def test_line_ends_and_encoding_are_kept():
    text = '# -*- coding: latin-1 -*-\nimport keras\nx = "é"\nopt = keras.optimizers.Adam(lr=1.0)\n'
    source = text.replace("\n", "\r\n").encode("latin-1")
    assert rewrite(source).code == source.replace(b"lr=", b"learning_rate=")
