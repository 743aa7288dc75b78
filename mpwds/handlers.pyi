from mpwds.pipeline.handlers import ignore_and_continue as ignore_and_continue
from mpwds.pipeline.handlers import ignore_and_stop as ignore_and_stop
from mpwds.pipeline.handlers import reraise_exception as reraise_exception
from mpwds.pipeline.handlers import warn_and_continue as warn_and_continue
from mpwds.pipeline.handlers import warn_and_stop as warn_and_stop
