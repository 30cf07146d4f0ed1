"""Configurations that TensorFlow Addons 0.16.1 saves, in which no class has a module, as JSON.

    python integration/addons/record_old.py > tests/signatures/addons_old.json

It needs `tensorflow-addons==0.16.1`, `tensorflow==2.8.4`, `protobuf<3.20`, `numpy<1.24` and Python
3.7 to 3.10.
"""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
import tensorflow_addons as tfa


def examples():
    """Optimizers by name, with others of Keras and schedules inside."""
    keras, addons = tf.keras.optimizers, tfa.optimizers
    falling = keras.schedules.ExponentialDecay(0.1, 10, 0.5)
    return {
        "MovingAverage": addons.MovingAverage(keras.Adam(falling), 0.9),
        "Lookahead": addons.Lookahead(keras.SGD(0.1, momentum=0.5, decay=0.25), 3),
        "SWA": addons.SWA("rmsprop", 5, 3),
        "LAMB": addons.LAMB(falling),
        "AdamW": addons.AdamW(addons.TriangularCyclicalLearningRate(0.1, 0.2, 5), 0.01),
    }


def main():
    found = {name: tf.keras.optimizers.serialize(made) for name, made in examples().items()}
    json.dump(found, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
