"""Many machines, placed and watched by Ray: tasks for the shards of a job, and fleets of servers."""

from mpwds.cluster.fleet import ServerFleet as ServerFleet
