from mpwds.compat.streaming.dataloader import StreamingDataLoader as StreamingDataLoader
from mpwds.compat.streaming.dataset import LocalDataset as LocalDataset
from mpwds.compat.streaming.dataset import Stream as Stream
from mpwds.compat.streaming.dataset import StreamingDataset as StreamingDataset
from mpwds.compat.streaming.writing import MDSWriter as MDSWriter
