from mpwds import tenbin as tenbin
from mpwds.compat.tensorcom.feeding import TensorcomDataset as TensorcomDataset
from mpwds.compat.tensorcom.feeding import send_batches as send_batches
from mpwds.compat.tensorcom.zcom import Connection as Connection
