#!/bin/bash
# A heterogeneous job: trainers with GPUs, and servers on machines without. Start it with `sbatch train.sh`.
#SBATCH --job-name=train
#SBATCH --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 --cpus-per-task=4
#SBATCH hetjob
#SBATCH --nodes=4 --ntasks-per-node=1 --cpus-per-task=32
set -euo pipefail

# Made once, in a folder that all machines share and only you can read.
mpwds keygen keys

# One line for each server. Trainers read the file again every few seconds: servers may be added and removed.
scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_1" | sed 's|.*|tcp://&:7880|' > servers.txt

# If a server ends, the others get its part (on_server_loss="move" in train.py).
srun --het-group=1 --kill-on-bad-exit=0 bash -c \
    'exec mpwds serve pipeline.py:dataset --bind tcp://0.0.0.0:7880 --workers "$SLURM_CPUS_PER_TASK" --keys keys' &
servers=$!

srun --het-group=0 python train.py file:servers.txt
kill -TERM "$servers"
wait "$servers" || true
