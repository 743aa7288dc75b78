"""Bytes of fields to values.

``decoders.py`` chooses a decoder by a field's extension. ``fields.py`` lists those of images, sound and
video. ``images.py``, ``audio.py``, ``video.py`` and ``loads.py`` decode; ``media.py`` refuses recordings that
are cut off.
"""
