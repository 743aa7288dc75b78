"""The commands about feeds: ``monitor``, ``stat``, ``show``, ``keygen``."""
