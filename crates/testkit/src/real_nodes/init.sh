#!/bin/sh
# The first process of a real node, whose directory is its argument: puts the node's own files and cgroups over what nodes of one
# machine would share. Then it waits, and reaps. Whoever kills it has switched the node off.
set -eu
node=$1
name=${node##*/}
all=/sys/fs/cgroup
if [ -e $all/cgroup.controllers ]; then
    mkdir -p "$all/$name"
    mount --bind "$all/$name" $all
else
    mount -t tmpfs cgroup "$node/cgroup"
    for hierarchy in $all/*; do
        own=$node/cgroup/${hierarchy##*/}
        # Some are known by two names.
        if [ -L "$hierarchy" ]; then cp -P "$hierarchy" "$own"; continue; fi
        mkdir -p "$own" "$hierarchy/$name"
        for file in cpuset.cpus cpuset.mems; do
            if [ -e "$hierarchy/$file" ]; then cat "$hierarchy/$file" > "$hierarchy/$name/$file"; fi
        done
        mount --bind "$hierarchy/$name" "$own"
    done
    # Nothing may be left below: programs take the first mount of a hierarchy for the one that counts.
    umount --recursive --lazy $all
    mount --move "$node/cgroup" $all
fi
for dir in lib log; do mount --bind "$node/$dir" "/var/$dir"; done
mount -t tmpfs run /run
# Each is named after the file that it covers, with dots for slashes.
cd "$node/sys"
for file in *; do mount --bind "$file" "/proc/sys/$(echo "$file" | tr . /)"; done
: > "$node/up"
while :; do sleep 1000 & wait; done
