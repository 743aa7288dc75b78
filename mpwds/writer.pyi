from mpwds.compat.writer import *
