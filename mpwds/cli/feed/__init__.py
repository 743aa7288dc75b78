"""Commands about servers: ``serve``, ``keygen``, ``monitor`` and ``stat``."""
