#!/usr/bin/env bash
#SBATCH --job-name=pkb
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
# One Ray node per Slurm node, the sweep on the first. Submit with the sweep's own arguments:
#   sbatch conf/cluster/slurm.sh device=cuda ranks=8 size=default models=[my-model] problems=[all]
# A requeued job continues its run: nothing answered is asked again, nothing judged is judged again.
set -euo pipefail

port="${RAY_PORT:-6379}"
# Only this job's processes may use its cluster.
RAY_AUTH_MODE=token
RAY_AUTH_TOKEN="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"
export RAY_AUTH_MODE RAY_AUTH_TOKEN
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head="${nodes[0]}"
address="$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | awk '{print $1}'):$port"

srun --nodes=1 --ntasks=1 -w "$head" ray start --head --port="$port" --block &
until srun --overlap --nodes=1 --ntasks=1 -w "$head" ray health-check --address="$address"; do sleep 1; done
for node in "${nodes[@]:1}"; do
    srun --nodes=1 --ntasks=1 -w "$node" ray start --address="$address" --block &
done

srun --overlap --nodes=1 --ntasks=1 -w "$head" pkb sweep "cluster.address=$address" "$@"
