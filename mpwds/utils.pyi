from mpwds.compat.utils import *
