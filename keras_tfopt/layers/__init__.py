"""Layers that make what the optimizers can do."""

from keras_tfopt.layers.embedding import Embedding, swap_embeddings

__all__ = ["Embedding", "swap_embeddings"]
