"""The originals' names as subclasses of `tf.compat.v1.train.Optimizer`, on TensorFlow."""
