from mpwds.compat.extradatasets import *
