"""Layers with row gradients, which the optimizers use as they are."""

from keras_tfopt.layers.embedding import Embedding, swap_embeddings

__all__ = ["Embedding", "swap_embeddings"]
