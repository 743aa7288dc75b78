"""webdataset.mix: mixtures of datasets."""

from mpwds.pipeline.mixing.mix import RandomMix as RandomMix
from mpwds.pipeline.mixing.mix import RoundRobin as RoundRobin
