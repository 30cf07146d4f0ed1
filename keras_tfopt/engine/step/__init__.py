"""Make a step, from gradients to new variables: read `Pipeline.run` in `pipeline.py` first."""
