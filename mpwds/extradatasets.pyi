from mpwds.compat.helpers import ChoppedDataset as ChoppedDataset
from mpwds.compat.helpers import MockDataset as MockDataset
from mpwds.compat.helpers import ResizedDataset as ResizedDataset
from mpwds.compat.helpers import guess_batchsize as guess_batchsize
from mpwds.compat.helpers import repeatedly as repeatedly
from mpwds.compat.helpers import with_epoch as with_epoch
from mpwds.compat.helpers import with_length as with_length
