from mpwds.compat.multi import *
