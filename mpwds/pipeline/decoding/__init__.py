"""Bytes of fields to values.

``decoders.py`` chooses a decoder by a field's extension. ``fields.py`` lists the extensions, and decodes all
but images, sound and video. ``images.py``, ``audio.py`` and ``video.py`` decode those; ``media.py`` refuses
recordings that are cut off.
"""
