#!/bin/bash
# Two network namespaces as two hosts, joined by a cable (a veth pair). Needs root and iproute2.
#   11_two_hosts.sh up      ddp0 has 10.77.0.1, ddp1 has 10.77.0.2
#   11_two_hosts.sh down    ends what runs in them, and takes them away
set -euo pipefail

down() {
    for host in ddp0 ddp1; do
        if ip netns pids "$host" >/dev/null 2>&1; then
            ip netns pids "$host" | xargs -r kill -9 || true # one may have ended by itself
            ip netns delete "$host" # the veth pair goes with it
        fi
    done
}

case "${1:-}" in
up)
    down # what an interrupted run has left
    trap 'down' ERR # all of it or nothing
    ip netns add ddp0
    ip netns add ddp1
    ip link add card netns ddp0 type veth peer name card netns ddp1
    for i in 0 1; do
        ip -n "ddp$i" address add "10.77.0.$((i + 1))/24" dev card
        ip -n "ddp$i" link set card up
        ip -n "ddp$i" link set lo up
        # Can this machine slow a card down? The lesson will.
        ip netns exec "ddp$i" tc qdisc replace dev card root tbf rate 1gbit burst 256kb latency 1s
        ip netns exec "ddp$i" tc qdisc delete dev card root
    done
    ;;
down) down ;;
*)
    echo "type  $0 up  or  $0 down" >&2
    exit 2
    ;;
esac
