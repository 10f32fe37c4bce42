#!/bin/sh
# task.sh NAME TASK ATTEMPT SECONDS BYTES NOTES GATE
#   A task of a history: says when it starts, ends or is told to stop, in a file outside of all nodes; leaves a file, a stream
#   and a value of which everybody knows what they must be. With a GATE it fails until that file is there.
# Attempts are counted anew after a change of coordinators: the process tells executions apart.
name=$1 task=$2 attempt=$3@$$ seconds=$4 bytes=$5 notes=$6 gate=$7
# .../nK/data/jobs/... on whatever machine it is.
node=${PWD%%/data/*} node=${node##*/}
# One short line with O_APPEND: lines of tasks that run at once do not mix.
note() { echo "$1 $name $task $attempt $node $(date +%s%N)" >> "$notes"; }
trap 'note stopped; exit 143' TERM
note start
# First, so that a disk may be full by the time at which the node takes the file. It never fails of itself: on a full disk it
# waits until there is room.
said=
while yes "$name:$task" 2>/dev/null | head -c "$bytes" 2>/dev/null > out; [ "$(wc -c < out)" != "$bytes" ]; do
    [ -n "$said" ] || note no-room
    said=1
    sleep 0.5
done
sleep "$seconds" &
wait $!
if [ -n "$gate" ] && [ ! -e "$gate" ]; then note gated; exit 1; fi
# More than what travels inside a record.
yes "$name:$task" 2>/dev/null | head -c 3000
echo
echo "nodectl-result: {\"of\": \"$name:$task\"}"
note end
