from mpwds.compat.tariterators import *
