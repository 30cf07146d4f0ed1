"""What TensorFlow Addons 0.23.0 calls things, and what configurations it saves, as JSON.

    python integration/addons/record.py > tests/signatures/addons.json

It needs `tensorflow-addons==0.23.0`, `tensorflow==2.15.1` and Python 3.9, 3.10 or 3.11.
"""

import inspect
import json
import os
import sys
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
warnings.simplefilter("ignore")

import tensorflow as tf
import tensorflow_addons as tfa

REQUIRED = "required"


def argument(parameter):
    """The name of an argument, its kind and its default."""
    empty = parameter.default is inspect.Parameter.empty
    default = REQUIRED if empty else parameter.default
    return {"name": parameter.name, "kind": parameter.kind.name, "default": default}


def arguments(function):
    """All arguments of a function or method."""
    parameters = inspect.signature(function).parameters.values()
    return [argument(p) for p in parameters if p.name != "self"]


def examples():
    """Optimizers and schedules by name, made so that their configurations have all there is."""
    optimizers, sgd = tfa.optimizers, tf.keras.optimizers.legacy.SGD
    decay = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    extended = optimizers.extend_with_decoupled_weight_decay(tf.keras.optimizers.legacy.Adam)
    return {
        "AdaBelief": optimizers.AdaBelief(0.01, rectify=False, amsgrad=True),
        "AdamW": optimizers.AdamW(0.01, 0.002, exclude_from_weight_decay=["bias"]),
        "COCOB": optimizers.COCOB(50.0),
        "ConditionalGradient": optimizers.ConditionalGradient(0.9, 0.5, ord="nuclear"),
        "LAMB": optimizers.LAMB(
            0.01,
            weight_decay=0.1,
            exclude_from_weight_decay=["bias"],
            exclude_from_layer_adaptation=["gamma"],
        ),
        "LazyAdam": optimizers.LazyAdam(decay, beta_1=0.8),
        "LazyAdam, decay": optimizers.LazyAdam(0.01, decay=0.5, clipnorm=1.5),
        "Lookahead": optimizers.Lookahead(optimizers.RectifiedAdam(0.01), 3, 0.4),
        "MovingAverage": optimizers.MovingAverage(sgd(0.1, 0.9), 0.9, start_step=2),
        "NovoGrad": optimizers.NovoGrad(0.01, grad_averaging=True),
        "ProximalAdagrad": optimizers.ProximalAdagrad(0.01, 0.2, 0.03, 0.04),
        "RectifiedAdam": optimizers.RectifiedAdam(0.01, total_steps=100, warmup_proportion=0.2),
        "SGDW": optimizers.SGDW(0.01, 0.002, 0.9, nesterov=True),
        "SWA": optimizers.SWA(optimizers.LAMB(0.01), 5, 3),
        "Yogi": optimizers.Yogi(0.02, beta1=0.8, activation="tanh"),
        "extended": extended(0.01, learning_rate=0.002),
        "TriangularCyclicalLearningRate": optimizers.TriangularCyclicalLearningRate(0.1, 0.2, 5),
        "ExponentialCyclicalLearningRate": optimizers.ExponentialCyclicalLearningRate(
            0.1, 0.2, 5, gamma=0.9
        ),
    }


def main():
    classes, functions = {}, {}
    for name, found in vars(tfa.optimizers).items():
        public = not name.startswith("_") and getattr(found, "__module__", "").startswith(
            "tensorflow_addons"
        )
        if public and inspect.isclass(found):
            own = [m for m, f in vars(found).items() if inspect.isfunction(f) and m[0] != "_"]
            classes[name] = {
                "arguments": arguments(found.__init__),
                "methods": {method: arguments(getattr(found, method)) for method in sorted(own)},
            }
        elif public and inspect.isfunction(found):
            functions[name] = arguments(found)
    callback = tfa.callbacks.AverageModelCheckpoint
    classes["AverageModelCheckpoint"] = {"arguments": arguments(callback.__init__), "methods": {}}
    serialize = tf.keras.optimizers.serialize
    configs = {}
    for name, example in examples().items():
        schedule = isinstance(example, tf.keras.optimizers.schedules.LearningRateSchedule)
        saved = tf.keras.optimizers.schedules.serialize(example) if schedule else serialize(example)
        configs[name] = saved
    recorded = {
        "recorded_from": f"TensorFlow Addons {tfa.__version__}, TensorFlow {tf.__version__}",
        "command": "python integration/addons/record.py",
        "classes": classes,
        "functions": functions,
        "configurations": configs,
    }
    json.dump(recorded, sys.stdout, indent=1, default=lambda value: value.item())
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
