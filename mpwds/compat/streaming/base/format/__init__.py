"""mosaicml-streaming's ``base.format``."""

from mpwds.compat.streaming.base.format.mds.writer import MDSWriter as MDSWriter
