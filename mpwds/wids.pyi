from mpwds.compat.wids import *
