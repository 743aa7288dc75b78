"""torch's DataLoader and webdataset's WebLoader with the workers of this package.

``data_loader.py`` is the public class. An epoch is a series of tasks (``iterator.py``): lists of indices that
workers fetch (``task_worker.py``) and collate (``torch_collate.py``).
"""
