"""mosaicml-streaming: ``from mpwds import streaming`` in place of ``import streaming``.

``mpwds/names.py`` lists the names, also of the modules below ``streaming.base``.
docs/coming-from/mosaicml-streaming.md says what programs find here, and what not.
"""
