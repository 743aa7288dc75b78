from mpwds.pipeline.sources.mix import RandomMix as RandomMix
from mpwds.pipeline.sources.mix import RoundRobin as RoundRobin
