from mpwds.compat.streaming.base.dataloader import StreamingDataLoader as StreamingDataLoader
from mpwds.compat.streaming.base.dataset import LocalDataset as LocalDataset
from mpwds.compat.streaming.base.dataset import StreamingDataset as StreamingDataset
from mpwds.compat.streaming.base.format.mds.writer import MDSWriter as MDSWriter
from mpwds.compat.streaming.base.stream import Stream as Stream
