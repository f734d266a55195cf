#!/usr/bin/env bash
# A Ray cluster by hand. On the head: by-hand.sh head. On every GPU node: by-hand.sh node HEAD_ADDRESS[:PORT].
# Further arguments go to `ray start`, for example --node-ip-address where a machine has several addresses.
# Every node needs Python, torch and ray of the same versions; the code of pkb travels with the run.
# Whoever reaches a Ray cluster's ports can run code on it, so the cluster asks for a token: the head prints what nodes need.
set -euo pipefail

port="${RAY_PORT:-6379}"
export RAY_AUTH_MODE="${RAY_AUTH_MODE:-token}"
case "${1:-}" in
    head)
        token="$(ray get-auth-token --generate)"
        ray start --head --port="$port" --dashboard-host=127.0.0.1 "${@:2}"
        echo "on every node:    RAY_AUTH_TOKEN=$token $0 node HEAD_ADDRESS:$port"
        echo "on this machine:  pkb sweep cluster.address=auto device=cuda ranks=8"
        ;;
    node)
        address="${2:?usage: by-hand.sh node HEAD_ADDRESS[:PORT] [OPTION ...]}"
        case "$address" in *:*) ;; *) address="$address:$port" ;; esac
        ray start --address="$address" "${@:3}"
        ;;
    stop)
        ray stop
        ;;
    *)
        echo "usage: by-hand.sh head [OPTION ...] | node HEAD_ADDRESS[:PORT] [OPTION ...] | stop" >&2
        exit 2
        ;;
esac
