"""Messages between trainer and workers, and how they travel.

Read ``protocol.py`` first: it describes the life of workers. ``channel.py`` carries messages between
processes of one machine; ``out_of_band.py`` prepares objects of any class in batches of a ``DataLoader``.
"""
