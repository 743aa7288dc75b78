from mpwds.compat.dataset import *
