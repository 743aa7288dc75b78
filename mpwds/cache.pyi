from mpwds.compat.cache import *
