"""Batches of a dataset, made by worker processes, as an iterator in the training process.

Start with ``multi_loader.py``, the public classes, and ``messages/protocol.py``, which says how trainer and
workers talk. Then: ``engine`` runs an epoch, ``worker`` is what runs in a worker, ``processes`` starts and
ends them, ``resume`` keeps the position. ``stages.py`` runs stages in the trainer, ``rebatch`` row pools,
``ranks`` even epochs; ``output.py`` is the last step (devices, jax); ``dataloader`` is torch's interface.
"""
