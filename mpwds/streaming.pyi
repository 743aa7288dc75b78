from mpwds.compat.streaming import *
