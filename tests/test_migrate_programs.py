"""`keras_tfopt.migrate` sees what kind of program it rewrites, and writes programs."""

import ast

import pytest

from keras_tfopt.migrate.code.rewriting import rewrite

pytestmark = pytest.mark.spread

KERAS = "from tensorflow import keras\n"
BACKEND = "from keras import backend as K\nimport keras\n"
TF1 = "import tensorflow.compat.v1 as tf\n"


def rewritten(source):
    done = rewrite(source.encode())
    ast.parse(done.code)
    return done.code.decode(), [text for _, text in done.findings]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "K.set_value(model.optimizer.lr, K.get_value(model.optimizer.lr)\n    * 0.5)",
            "model.optimizer.learning_rate = (float(model.optimizer.learning_rate)\n    * 0.5)",
        ),
        (
            "f = lambda epoch: K.set_value(model.optimizer.lr, 0.1)",
            "f = lambda epoch: model.optimizer.learning_rate.assign(0.1)",
        ),
        ("x = self.d_optimizer.lr", "x = self.d_optimizer.learning_rate"),
        ("x = self._optimizer.lr", "x = self._optimizer.learning_rate"),
        ("def state(optimizer): return optimizer.weights", ": return optimizer.variables"),
        ("x = train(lr=0.1)", "x = train(lr=0.1)"),
        ("r = K.eval(m.optimizer.lr)", "r = float(m.optimizer.learning_rate)"),
        ("n = K.get_value(m.optimizer.iterations)", "n = int(m.optimizer.iterations)"),
        ("K.update(m.optimizer.lr, 0.1)", "m.optimizer.learning_rate = 0.1"),
        (
            "def set_rate(optimizer, rate): K.set_value(optimizer.lr, rate)",
            "def set_rate(optimizer, rate): optimizer.learning_rate = rate",
        ),
    ],
)
def test_calls_of_the_backend_of_keras_2(before, after):
    code, findings = rewritten(BACKEND + before)
    assert code.endswith(after) and not findings


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("opt = self.model.optimizer\nopt.lr = 0.1", "\nopt.learning_rate = 0.1"),
        ("opt = keras.optimizers.get('sgd')\nopt.lr = 0.1", "\nopt.learning_rate = 0.1"),
        ("def halve(optimizer): optimizer.lr *= 0.5", ": optimizer.learning_rate *= 0.5"),
        ("setattr(m.optimizer, 'lr', 0.1)", '\nsetattr(m.optimizer, "learning_rate", 0.1)'),
        ('x = getattr(m.optimizer, "lr", 0)', '\nx = getattr(m.optimizer, "learning_rate", 0)'),
        ("hasattr(m.layer, 'lr')", "\nhasattr(m.layer, 'lr')"),
        ("opt = make()\nopt.lr = 0.1", "\nopt.lr = 0.1"),
    ],
)
def test_rates_by_other_names_of_an_optimizer(before, after):
    code, findings = rewritten(KERAS + before)
    assert code.endswith(after) and not findings


def test_wrong_calls_of_the_backend_stay():
    source = (
        BACKEND + "K.set_value()\nx = K.get_value()\nK.set_value(model.optimizer.learning_rate)"
    )
    assert rewritten(source) == (source, [])


def test_a_value_that_may_be_no_variable():
    code, (finding,) = rewritten(BACKEND + "K.set_value(model.optimizer.momentum, 0.9)")
    assert "K.set_value(model.optimizer.momentum" in code and "no `backend.set_value`" in finding


@pytest.mark.parametrize(
    "source",
    [
        f"{KERAS}def train(optimizer): optimizer.minimize(loss)",
        f"{KERAS}x = {{'class_name': 'Layer', 'config': {{'decay': 0.1}}}}",
        f"{KERAS}x = {{'class_name': 'SGD', 'config': {{'learning_rate': 0.1}}}}",
        "import torch\nopt = torch.optim.SGD(net.parameters(), lr=cfg.optimizer.lr)",
        f"{KERAS}rate = cfg.optimizer.lr",
        f"{KERAS}n = self.config.optimizer.get_weights()",
    ],
)
def test_what_may_be_something_else_stays(source):
    assert rewritten(source) == (source, [])


@pytest.mark.parametrize(
    "program",
    [
        "opt = tf.train.AdamOptimizer(0.1)\nwith tf.Session(): pass",
        "opt = tf.train.AdamOptimizer(0.1)\nopt.minimize(loss)",
        "opt = tf.train.AdamOptimizer(0.1)\ng = tf.gradients(loss, w)",
        "opt = tf.train.AdamOptimizer(0.1)\nopt.apply_gradients(pairs, global_step=step)",
        "opt = tf.train.AdamOptimizer(0.1)\nopt.apply_gradients(pairs, step)",
        "opt = tf.train.AdamOptimizer(0.1)\nstep = tf.train.get_or_create_global_step()",
        "from tensorflow.compat.v1 import Session\nopt = tf.train.AdamOptimizer(0.1)",
        "class Own(tf.train.AdamOptimizer): pass",
    ],
)
def test_programs_of_tensorflow_1(program):
    code, _ = rewritten(TF1 + program)
    assert "keras_tfopt.legacy.AdamOptimizer" in code


def test_imports_of_what_is_gone_are_removed_if_nothing_uses_them():
    unused = (
        "from tensorflow.contrib.opt import LARSOptimizer, Other\nimport tensorflow_addons as tfa"
    )
    assert rewritten(f"import os\n{unused}\nprint(os.name)") == ("import os\nprint(os.name)", [])


def test_minimize_of_another_package_decides_nothing():
    code, findings = rewritten(
        f"{TF1}import scipy.optimize\nscipy.optimize.minimize(f, x)\n"
        "model.compile(tf.train.AdamOptimizer(1e-3))"
    )
    assert "model.compile(keras_tfopt.Adam(1e-3))" in code and not findings


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("from tensorflow.keras import *\noptimizers.Adam(lr=1e-3)", "import them one by one"),
        ("from tensorflow.compat.v1 import *\ntrain.AdamOptimizer(1e-3)", "one by one"),
        ("from tensorflow_addons import *\noptimizers.LAMB()", "import them one by one"),
        (
            f"{KERAS}class Warm(keras.optimizers.Adam):\n"
            "    def __init__(self, lr):\n        super().__init__(lr=lr)",
            "takes `learning_rate`",
        ),
        (
            "import tensorflow_addons as tfa\n"
            "class My(tfa.optimizers.DecoupledWeightDecayExtension): pass",
            "is no base class",
        ),
        (
            f"{KERAS}opt = keras.optimizers.Adam(1e-3, decay=1e-6)\nopt.lr = 0.1",
            "can no longer be set",
        ),
        (
            f"{KERAS}opt = keras.optimizers.Adam(1e-3, decay=1e-6)\n"
            "keras.callbacks.ReduceLROnPlateau()",
            "can no longer be set",
        ),
        (f"{KERAS}x = m.optimizer.get_config()['lr']", "takes `learning_rate`"),
        (f"{KERAS}x = keras.optimizers.SGD.from_config({{'lr': 0.1}})", "takes `learning_rate`"),
        (
            f"{KERAS}x = keras.optimizers.get({{'class_name': 'SGD', 'config': {{'lr': 0.1}}}})",
            "takes `learning_rate`",
        ),
        (f"{KERAS}x = m.optimizer.decay", "no `decay`"),
        (f"{KERAS}self.g_optimizer.minimize(loss, weights, tape=tape)", "no `minimize`"),
        (f"{KERAS}cls = keras.optimizers.Adam if x else None\no = cls(lr=1)", "`learning_rate`"),
        (f"{KERAS}all = {{1: keras.optimizers.SGD}}\no = all[1](decay=1)", "`learning_rate`"),
        (f"{KERAS}o = getattr(keras.optimizers, name)(0.1, decay=1)", "`learning_rate`"),
        (f"{KERAS}all = {{1: keras.optimizers.SGD}}\no = all.get(1)(decay=1)", "`learning_rate`"),
        (f"{KERAS}x = {{'class_name': 'sgd', 'config': {{'lr': 0.1}}}}", "`learning_rate`"),
        (f"{KERAS}def train(optimizer): return optimizer.get_updates(p, l)", "no `get_updates`"),
        (f"{KERAS}x = m.optimizer.get_slot(v, 'm')", "`slot(variable, name)`"),
        (f"{KERAS}x = keras.optimizers.TFOptimizer(o)", "no optimizers of TensorFlow 1"),
        ("import tensorflow as tf\nwith tf.Session(): pass", "`tf.disable_v2_behavior()`"),
        (f"{TF1}with tf.Session(): pass", "sessions stay as they are"),
        ("import tensorflow as tf\ntf.contrib.slim.learning.train(x)", "`tf.contrib` is gone"),
        ("import tensorflow as tf\nslim = tf.contrib.slim", "`tf.contrib` is gone"),
        ("import tensorflow as tf\ntf.estimator.Estimator(f)", "no such name any more"),
        ("import tensorflow_addons as tfa\ntfa.metrics.F1Score(3)", "none of its optimizers"),
        (f"{TF1}rate = tf.train.natural_exp_decay(0.1, step, 5, 0.5)", "no such schedule"),
        (f"{TF1}rate = tf.train.piecewise_constant_decay(step, [3], [1, 2])", "PiecewiseConstant"),
        (f"{TF1}rate = tf.train.cosine_decay_restarts(0.1, step, 5)", "CosineDecayRestarts"),
    ],
)
def test_what_the_user_has_to_decide(source, words):
    (finding,) = rewritten(source)[1]
    assert words in finding


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            f'{KERAS}o = keras.optimizers.legacy.SGD(0.1, 0.9, True, "nm")',
            'migrate.SGD(learning_rate=0.1, momentum=0.9, nesterov=True, name="nm")',
        ),
        (
            f"{KERAS}o = keras.optimizers.legacy.Nadam(schedule_decay=0.01)",
            "migrate.Nadam(momentum_decay=0.01)",
        ),
        (
            f'{TF1}o = tf.train.AdamOptimizer(1e-3, name="train/Adam")',
            'Adam(1e-3, name="train_Adam")',
        ),
        (
            "from tensorflow.python.training.adam import AdamOptimizer\no = AdamOptimizer(1e-3)",
            "keras_tfopt.Adam(1e-3)",
        ),
        (
            f"{TF1}o = tf.train.AdamOptimizer(\n    0.1,\n    0.9, 0.99,  # two\n"
            "    use_locking=True,\n)",
            "Adam(\n    learning_rate=0.1,\n    beta_1=0.9, beta_2=0.99,  # two\n)",
        ),
    ],
)
def test_calls(before, after):
    code, findings = rewritten(before)
    assert code.endswith(after) and not findings


@pytest.mark.parametrize(
    "use",
    ['o = keras.optimizers.get("Addons>LAMB")\n', 'm = keras.models.load_model("model.h5")\n'],
)
def test_classes_of_tensorflow_addons_in_files_stay_registered(use):
    code, findings = rewritten(f"{KERAS}import tensorflow_addons as tfa\n{use}")
    assert code == f"{KERAS}import keras_tfopt.addons\n\n{use}" and not findings
    assert "keras_tfopt" not in rewritten(f"{KERAS}{use}")[0]


@pytest.mark.parametrize(
    ("imported", "module"),
    [
        ("import tensorflow_addons as tfa", "tfa.optimizers"),
        ("import tensorflow_addons.optimizers as opt", "opt"),
        ("from tensorflow_addons import optimizers", "optimizers"),
    ],
)
def test_classes_of_tensorflow_addons_that_are_looked_up(imported, module):
    code, findings = rewritten(f"{imported}\no = getattr({module}, name)(0.1)")
    after = "import keras_tfopt.addons\n\no = getattr(keras_tfopt.addons, name)(0.1)"
    assert code == after and not findings
