from mpwds.compat.handlers import *
