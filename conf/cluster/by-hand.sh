#!/usr/bin/env bash
# A Ray cluster by hand. On the head: by-hand.sh head. On every GPU node: by-hand.sh node HEAD_ADDRESS[:PORT].
# Every node needs Python, torch and ray of the same versions; the code of pkb travels with the run.
set -euo pipefail

port="${RAY_PORT:-6379}"
case "${1:-}" in
    head)
        ray start --head --port="$port" --dashboard-host=127.0.0.1
        echo "on this machine: pkb sweep cluster.address=auto device=cuda ranks=8"
        ;;
    node)
        address="${2:?usage: by-hand.sh node HEAD_ADDRESS[:PORT]}"
        case "$address" in *:*) ;; *) address="$address:$port" ;; esac
        ray start --address="$address"
        ;;
    stop)
        ray stop
        ;;
    *)
        echo "usage: by-hand.sh head | node HEAD_ADDRESS[:PORT] | stop" >&2
        exit 2
        ;;
esac
