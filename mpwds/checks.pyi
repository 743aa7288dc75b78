from mpwds.compat.helpers import check as check
from mpwds.compat.helpers import checkcallable as checkcallable
from mpwds.compat.helpers import checkmember as checkmember
from mpwds.compat.helpers import checknotnone as checknotnone
from mpwds.compat.helpers import checkrange as checkrange
from mpwds.compat.helpers import checktype as checktype
