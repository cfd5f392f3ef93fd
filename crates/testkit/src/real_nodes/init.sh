#!/bin/sh
# The first process of a real node, whose directory is its argument: puts the node's own files over what nodes of one machine would
# share. Then it waits, and reaps. Whoever kills it has switched the node off.
set -eu
node=$1
for dir in lib log; do mount --bind "$node/$dir" "/var/$dir"; done
mount -t tmpfs run /run
# Each is named after the file that it covers, with dots for slashes.
cd "$node/sys"
for file in *; do mount --bind "$file" "/proc/sys/$(echo "$file" | tr . /)"; done
: > "$node/up"
while :; do sleep 1000 & wait; done
