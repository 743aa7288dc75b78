"""The last step of a loader: tensors, NumPy or jax arrays, pinned memory, a CUDA device.

``delivery.py`` chooses the step; ``replacing.py`` walks through a batch, and ``jax_arrays.py`` converts.
"""
