from mpwds.compat.mix import *
