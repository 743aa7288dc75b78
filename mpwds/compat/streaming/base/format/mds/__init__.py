"""mosaicml-streaming's ``base.format.mds``."""

from mpwds.compat.streaming.base.format.mds.writer import MDSWriter as MDSWriter
