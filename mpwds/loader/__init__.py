"""Batches of a dataset, made by worker processes, as an iterator in the training process.

Start with ``multi_loader.py``, the public classes, and ``messages/protocol.py``, which says how trainer and
workers talk. Then: ``engine`` runs an epoch, ``launching`` and ``processes`` start and end the workers,
``worker`` is what runs in them, ``resume`` keeps the position. ``stages.py`` runs stages in the trainer,
``even.py`` even epochs; ``output.py`` is the last step (devices, jax); ``dataloader`` is torch's interface.
"""
