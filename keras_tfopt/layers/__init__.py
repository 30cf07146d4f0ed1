"""Layers with row gradients, which optimizers of this package use directly."""

from keras_tfopt.layers.embedding import Embedding, swap_embeddings

__all__ = ["Embedding", "swap_embeddings"]
