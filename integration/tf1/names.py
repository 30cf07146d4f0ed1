"""What TensorFlow 1.15.5 calls the variables of its optimizers, as JSON.

    python integration/tf1/names.py > tests/signatures/tf1_checkpoint_names.json

For each class, trained for one step's worth of graph on a kernel and a bias: by name of a variable,
its shape, data type and, of slots, which of what.
"""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow

tf = tensorflow.compat.v1


def makers(train, opt):
    """How each optimizer is made, from the modules that have those of `tf.train` and of contrib."""

    def momentum():
        return train.MomentumOptimizer(0.1, 0.9)

    LazyAdamW = opt.extend_with_decoupled_weight_decay(opt.LazyAdamOptimizer)
    return {
        "AdadeltaOptimizer": lambda step: train.AdadeltaOptimizer(0.1),
        "AdagradDAOptimizer": lambda step: train.AdagradDAOptimizer(0.1, step),
        "AdagradOptimizer": lambda step: train.AdagradOptimizer(0.1),
        "AdamOptimizer": lambda step: train.AdamOptimizer(),
        "AdamOptimizer, named": lambda step: train.AdamOptimizer(name="generator/Adam"),
        "FtrlOptimizer": lambda step: train.FtrlOptimizer(0.1),
        "FtrlOptimizer, named": lambda step: train.FtrlOptimizer(
            0.1, accum_name="acc", linear_name="lin"
        ),
        "GradientDescentOptimizer": lambda step: train.GradientDescentOptimizer(0.1),
        "MomentumOptimizer": lambda step: momentum(),
        "ProximalAdagradOptimizer": lambda step: train.ProximalAdagradOptimizer(0.1),
        "ProximalGradientDescentOptimizer": lambda step: train.ProximalGradientDescentOptimizer(
            0.1
        ),
        "RMSPropOptimizer": lambda step: train.RMSPropOptimizer(0.1),
        "RMSPropOptimizer, centered": lambda step: train.RMSPropOptimizer(0.1, centered=True),
        "AdaMaxOptimizer": lambda step: opt.AdaMaxOptimizer(),
        "AdamGSOptimizer": lambda step: opt.AdamGSOptimizer(step),
        "AdamWOptimizer": lambda step: opt.AdamWOptimizer(0.1),
        "AddSignOptimizer": lambda step: opt.AddSignOptimizer(),
        "GGTOptimizer": lambda step: opt.GGTOptimizer(),
        "LARSOptimizer": lambda step: opt.LARSOptimizer(0.1),
        "LazyAdamGSOptimizer": lambda step: opt.LazyAdamGSOptimizer(step),
        "LazyAdamOptimizer": lambda step: opt.LazyAdamOptimizer(),
        "MomentumWOptimizer": lambda step: opt.MomentumWOptimizer(
            0.1, learning_rate=0.1, momentum=0.9
        ),
        "MovingAverageOptimizer": lambda step: opt.MovingAverageOptimizer(momentum()),
        "MultitaskOptimizerWrapper": lambda step: opt.MultitaskOptimizerWrapper(momentum()),
        "NadamOptimizer": lambda step: opt.NadamOptimizer(),
        "PowerSignOptimizer": lambda step: opt.PowerSignOptimizer(),
        "RegAdagradOptimizer": lambda step: opt.RegAdagradOptimizer(0.1),
        "ShampooOptimizer": lambda step: opt.ShampooOptimizer(step),
        "ShampooWOptimizer": lambda step: opt.ShampooWOptimizer(0.1, global_step=step),
        "VariableClippingOptimizer": lambda step: opt.VariableClippingOptimizer(
            momentum(), {}, 1.0
        ),
        "VariableClippingOptimizer, around Adam": lambda step: opt.VariableClippingOptimizer(
            train.AdamOptimizer(), {}, 1.0
        ),
        "MovingAverageOptimizer, around clipping": lambda step: opt.MovingAverageOptimizer(
            opt.VariableClippingOptimizer(opt.AdaMaxOptimizer(), {}, 1.0, name="Clip")
        ),
        "extend_with_decoupled_weight_decay(LazyAdamOptimizer)": lambda step: LazyAdamW(
            0.1, learning_rate=0.1
        ),
    }


def described(make):
    with tf.Graph().as_default():
        tf.enable_resource_variables()
        step = tf.train.get_or_create_global_step()
        kernel = tf.get_variable("dense/kernel", [5, 4])
        bias = tf.get_variable("dense/bias", [4])
        optimizer = make(step)
        loss = tf.reduce_sum(tf.matmul(tf.ones([2, 5]), kernel) ** 2 + bias)
        optimizer.minimize(loss, global_step=step)
        # Wrappers have no slots of their own, or none that can be asked for.
        candidates = [getattr(optimizer, name, None) for name in ("_opt", "_optimizer")]
        inner = next((one for one in candidates if hasattr(one, "get_slot_names")), optimizer)
        slots = {
            inner.get_slot(variable, name).op.name: f"{name} of {variable.op.name}"
            for name in inner.get_slot_names()
            for variable in (kernel, bias)
            if inner.get_slot(variable, name) is not None
        }
        return {
            v.op.name: [v.shape.as_list(), v.dtype.base_dtype.name, slots.get(v.op.name, "")]
            for v in tf.global_variables()
        }


def main():
    from tensorflow.contrib import opt
    from tensorflow.contrib.opt.python.training import weight_decay_optimizers

    opt.ShampooWOptimizer = weight_decay_optimizers.ShampooWOptimizer  # which it does not export
    found = {name: described(make) for name, make in makers(tf.train, opt).items()}
    recorded_from = "TensorFlow " + tensorflow.__version__
    json.dump({"recorded_from": recorded_from, "names": found}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
