from mpwds.compat.tar_stages import FileCache as FileCache
from mpwds.compat.tar_stages import LRUCleanup as LRUCleanup
from mpwds.compat.tar_stages import StreamingOpen as StreamingOpen
from mpwds.compat.tar_stages import pipe_cleaner as pipe_cleaner
from mpwds.storage.streams.urls import url_to_cache_name as url_to_cache_name
from mpwds.storage.tar.entries import check_tar_format as check_tar_format
