from mpwds.compat.autodecode import *
