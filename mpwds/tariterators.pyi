from mpwds.compat.tar_stages import base_plus_ext as base_plus_ext
from mpwds.compat.tar_stages import group_by_keys as group_by_keys
from mpwds.compat.tar_stages import tar_file_expander as tar_file_expander
from mpwds.compat.tar_stages import tar_file_iterator as tar_file_iterator
from mpwds.compat.tar_stages import url_opener as url_opener
from mpwds.compat.tar_stages import valid_sample as valid_sample
from mpwds.pipeline.sources.samples import tarfile_samples as tarfile_samples
from mpwds.pipeline.sources.samples import tarfile_to_samples as tarfile_to_samples
