from mpwds.pipeline.mix import RandomMix as RandomMix
from mpwds.pipeline.mix import RoundRobin as RoundRobin
