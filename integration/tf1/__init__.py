"""Programs for TensorFlow 1.15 itself (Python 3.7); they import nothing of this project."""
