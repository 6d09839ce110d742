#!/bin/bash
# Made by `nsabench fleet slurm`: one shard, begun or gone on with.
@DIRECTIVES@
set -u
# The last task of an array has the id of the array, too: only this name means one task.
task="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
echo "== shard $SLURM_ARRAY_TASK_ID of @COUNT@ on $SLURMD_NODENAME, job $task," \
    "restart ${SLURM_RESTART_COUNT:-0}, $(date -u +%FT%TZ)"
late=0
child=
hand_on() { [ -z "$child" ] || kill -TERM "$child" 2>/dev/null; }
trap 'late=1; hand_on' USR1
trap hand_on TERM INT
@VARIABLES@
@START@ fleet measure @HERE@ "$SLURM_ARRAY_TASK_ID" &
child=$!
# A signal ends a wait before the child has ended; one for a child that has ended gives its code.
while kill -0 "$child" 2>/dev/null; do wait "$child"; done
wait "$child"
code=$?
echo "== ended with $code"
case $code in
@DONE@) @TIDY@exit 0 ;; # whole: what failed in it is said by the merged run
130 | 143)
    if [ "$late" = 1 ]; then
        echo "== the time was nearly up: queued again"
        scontrol requeue "$task" && sleep 60 # ended by Slurm meanwhile
    fi
    ;;
@ELSEWHERE@) echo "== this shard goes on where it was begun: nsabench fleet submit @FLEET@" ;;
esac
exit "$code"
