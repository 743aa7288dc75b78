from mpwds.compat.gopen import *
