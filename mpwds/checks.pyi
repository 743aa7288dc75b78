from mpwds.compat.checks import *
