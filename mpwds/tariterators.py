"""Reading tar files, by webdataset's module name."""

from __future__ import annotations

from mpwds.pipeline.sources.samples import tarfile_samples, tarfile_to_samples
from mpwds.pipeline.sources.tariterators import (
    base_plus_ext,
    group_by_keys,
    tar_file_expander,
    tar_file_iterator,
    url_opener,
    valid_sample,
)

__all__ = [
    "base_plus_ext",
    "group_by_keys",
    "tar_file_expander",
    "tar_file_iterator",
    "tarfile_samples",
    "tarfile_to_samples",
    "url_opener",
    "valid_sample",
]
