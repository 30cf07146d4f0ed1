"""Three programs of the kinds that people have for TensorFlow 1: sessions, queues of NumPy, savers.

    python integration/tf1/programs.py NAME FOLDER STEPS OUT [MODULE]

NAME is `convolutional`, `skip_gram` or `gan`. It runs on TensorFlow 1.15.5, and on that of today
with its optimizers from MODULE, `keras_tfopt.legacy`. Checkpoints go to FOLDER, from which it goes
on if there is one; it ends after step STEPS, when it writes another. OUT gets an archive with the
losses of each step, `<loss>/<step>`, and all variables at the end, `var/<name>`. Data and initial
weights follow from fixed seeds of NumPy; the sampler of `skip_gram` starts anew in every session.
"""

import importlib
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow

tf = tensorflow.compat.v1
tf.logging.set_verbosity(tf.logging.ERROR)


def weights(random, *shape):
    scale = np.sqrt(2 / np.prod(shape[:-1]))
    return (random.randn(*shape) * scale).astype("float32")


def convolutional(train, resources):
    """A convolutional network, in the style of the tutorial: its count of batches is a float."""
    random, size = np.random.RandomState(1), 16
    kinds = random.randn(5, 8, 8, 1)

    def variable(*shape):
        return tf.Variable(weights(random, *shape), use_resource=resources)

    def zeros(*shape):
        return tf.Variable(tf.zeros(shape), use_resource=resources)

    images = tf.placeholder(tf.float32, [size, 8, 8, 1])
    labels = tf.placeholder(tf.int64, [size])
    conv1, bias1 = variable(3, 3, 1, 8), zeros(8)
    conv2, bias2 = variable(3, 3, 8, 16), zeros(16)
    dense1, bias3 = variable(2 * 2 * 16, 32), zeros(32)
    dense2, bias4 = variable(32, 5), zeros(5)
    x = images
    for kernel, bias in ((conv1, bias1), (conv2, bias2)):
        x = tf.nn.conv2d(x, kernel, strides=[1, 1, 1, 1], padding="SAME")
        x = tf.nn.relu(tf.nn.bias_add(x, bias))
        x = tf.nn.max_pool(x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
    x = tf.nn.relu(tf.matmul(tf.reshape(x, [size, -1]), dense1) + bias3)
    logits = tf.matmul(x, dense2) + bias4
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )
    loss += 5e-4 * sum(tf.nn.l2_loss(one) for one in (dense1, bias3, dense2, bias4))

    batch = tf.Variable(0, dtype=tf.float32, trainable=False, use_resource=resources)
    rate = tf.train.exponential_decay(0.02, batch * size, 10 * size, 0.9, staircase=True)
    step = train.MomentumOptimizer(rate, 0.9).minimize(loss, global_step=batch)

    def one_step(session, number):
        random = np.random.RandomState(100 + number)
        y = random.randint(0, 5, size)
        x = kinds[y] + random.randn(size, 8, 8, 1)
        _, value = session.run([step, loss], {images: x, labels: y})
        return {"loss": value}

    return one_step


def skip_gram(train, resources):
    """Vectors of words, of which few are in a batch, some of them twice."""
    random, words, size, width = np.random.RandomState(2), 200, 32, 16
    inputs = tf.placeholder(tf.int32, [size])
    labels = tf.placeholder(tf.int64, [size, 1])

    def variable(name, value):
        return tf.get_variable(name, initializer=value.astype("float32"), use_resource=resources)

    embeddings = variable("embeddings", random.uniform(-1, 1, (words, width)))
    nce_weights = variable("nce_weights", random.randn(words, width) / np.sqrt(width))
    nce_biases = variable("nce_biases", np.zeros(words))
    count = tf.train.get_or_create_global_step()
    sampled = tf.nn.log_uniform_candidate_sampler(labels, 1, 8, True, words, seed=7)
    loss = tf.reduce_mean(
        tf.nn.nce_loss(
            weights=nce_weights,
            biases=nce_biases,
            labels=labels,
            inputs=tf.nn.embedding_lookup(embeddings, inputs),
            num_sampled=8,
            num_classes=words,
            sampled_values=sampled,
        )
    )
    rate = tf.train.polynomial_decay(0.5, count, 100, 0.05)
    step = train.AdagradOptimizer(rate).minimize(loss, global_step=count)

    def one_step(session, number):
        random = np.random.RandomState(100 + number)
        center = np.minimum(random.zipf(1.5, size), words) - 1
        context = (center[:, None] + random.randint(1, 4, (size, 1))) % words
        value, _ = session.run([loss, step], {inputs: center, labels: context})
        return {"loss": value}

    return one_step


def gan(train, resources):
    """Two networks with an Adam each; the discriminator makes two steps for one of the other."""
    random, size, noise = np.random.RandomState(3), 16, 4
    real = tf.placeholder(tf.float32, [size, 2])
    z = tf.placeholder(tf.float32, [size, noise])
    initial = {
        "generator": [weights(random, noise, 8), weights(random, 8, 2)],
        "discriminator": [weights(random, 2, 8), weights(random, 8, 1)],
    }

    def network(x, name):
        with tf.variable_scope(name, reuse=tf.AUTO_REUSE, use_resource=resources):
            for layer, kernel in zip(("hidden", "output"), initial[name]):
                with tf.variable_scope(layer):
                    w = tf.get_variable("kernel", initializer=kernel)
                    b = tf.get_variable("bias", initializer=np.zeros(kernel.shape[1], "float32"))
                x = tf.matmul(x, w) + b
                x = tf.nn.leaky_relu(x) if layer == "hidden" else x
        return x

    def cross_entropy(logits, label):
        labels = label * tf.ones_like(logits)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))

    made = network(z, "generator")
    on_real, on_made = network(real, "discriminator"), network(made, "discriminator")
    d_loss = cross_entropy(on_real, 0.9) + cross_entropy(on_made, 0.0)
    g_loss = cross_entropy(on_made, 1.0)
    d_variables = tf.trainable_variables("discriminator")
    g_variables = tf.trainable_variables("generator")
    count = tf.train.get_or_create_global_step()
    d_step = train.AdamOptimizer(0.01, beta1=0.5).minimize(d_loss, var_list=d_variables)
    g_step = train.AdamOptimizer(0.005, beta1=0.5).minimize(g_loss, count, var_list=g_variables)

    def one_step(session, number):
        losses = {}
        for turn in range(2):
            random = np.random.RandomState(1000 + 2 * number + turn)
            feed = {real: 1 + 0.3 * random.randn(size, 2), z: random.randn(size, noise)}
            losses[f"d_loss/{turn}"] = session.run([d_loss, d_step], feed)[0]
        losses["g_loss"] = session.run([g_loss, g_step], feed)[0]
        return losses

    return one_step


PROGRAMS = {"convolutional": convolutional, "skip_gram": skip_gram, "gan": gan}


def main(name, folder, steps, out, module=None, resources=False):
    train = importlib.import_module(module) if module else tf.train
    done = {}
    with tf.Graph().as_default(), tf.Session() as session:
        one_step = PROGRAMS[name](train, resources)
        saver = tf.train.Saver()
        first, latest = 0, tf.train.latest_checkpoint(folder)
        if latest is None:
            session.run(tf.global_variables_initializer())
        else:
            saver.restore(session, latest)
            first = int(latest.rpartition("-")[2])
        for number in range(first, int(steps)):
            for key, value in one_step(session, number).items():
                done[f"{key}/{number}"] = value
        saver.save(session, os.path.join(folder, "model.ckpt"), int(steps))
        for variable in tf.global_variables():
            done["var/" + variable.op.name] = session.run(variable)
    np.savez(out, **done)


if __name__ == "__main__":
    main(*sys.argv[1:])
