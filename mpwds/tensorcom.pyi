from mpwds.compat.tensorcom import *
