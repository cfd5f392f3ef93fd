#!/bin/sh
# Ends what the process that started this one leaves behind, whatever ended that process: reads from standard input until
# it closes. Lines are `p PID STARTTIME` for a process and `d DIR` for a directory. A process id is only killed while its
# start time (field 22 of /proc/PID/stat) is the recorded one. The process group goes with it.
pids=; dirs=
while read -r kind a b; do
  case $kind in
    p) pids="$pids $a:$b" ;;
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
printf '%s\n' "$dirs" | while read -r dir; do
  [ -n "$dir" ] && [ -f "$dir/.nodeward-testbed" ] && rm -rf -- "$dir"
done
exit 0
