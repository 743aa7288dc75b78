from mpwds.compat.shardlists import *
