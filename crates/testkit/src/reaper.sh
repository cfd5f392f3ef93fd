#!/bin/sh
# Ends what the process that started this one leaves behind, whatever ended that process: reads from standard input until
# it closes. Lines are `p PID STARTTIME` for a process, `c NAME` for the cgroups of that name, and `d DIR` for a directory. A
# process id is only killed while its start time (field 22 of /proc/PID/stat) is the recorded one. The process group goes
# with it.
pids=; cgroups=; dirs=
while read -r kind a b; do
  case $kind in
    p) pids="$pids $a:$b" ;;
    c) cgroups="$cgroups $a" ;;
    d) dirs="$dirs
$a" ;;
  esac
done
for entry in $pids; do
  pid=${entry%%:*}; start=${entry##*:}
  { read -r stat < "/proc/$pid/stat"; } 2>/dev/null || continue
  set -- ${stat##*) }
  shift 19
  [ "$1" = "$start" ] && kill -9 "-$pid" 2>/dev/null
done
n=0
for entry in $pids; do
  pid=${entry%%:*}
  while [ -d "/proc/$pid" ] && [ $n -lt 50 ]; do sleep 0.1; n=$((n+1)); done
done
# A cgroup can be removed once its last process is gone.
for cgroup in $cgroups; do
  n=0
  while tops=$(ls -d "/sys/fs/cgroup/$cgroup" "/sys/fs/cgroup/"*"/$cgroup" 2>/dev/null); [ -n "$tops" ] && [ $n -lt 100 ]; do
    for top in $tops; do find "$top" -depth -type d -exec rmdir {} \; 2>/dev/null; done
    sleep 0.1; n=$((n+1))
  done
done
printf '%s\n' "$dirs" | while read -r dir; do
  [ -n "$dir" ] && [ -f "$dir/.nodeward-testbed" ] && rm -rf -- "$dir"
done
exit 0
