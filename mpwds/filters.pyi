from mpwds.compat.filters import *
