"""Samples to batches.

``collate.py`` stacks arrays; ``padded.py`` pads them to one shape first.
"""
