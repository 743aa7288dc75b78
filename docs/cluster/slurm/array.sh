#!/bin/bash
# A job in parts: each task of the array writes every 64th shard. `--requeue` runs a part again that was lost.
#SBATCH --job-name=augment
#SBATCH --array=0-63 --requeue
#SBATCH --cpus-per-task=4
set -euo pipefail

mpwds proc pipeline.py:stages 'in-{000000..000999}.tar' out-%06d.tar \
    --jobs "$SLURM_CPUS_PER_TASK" --part "$SLURM_ARRAY_TASK_ID/64"
