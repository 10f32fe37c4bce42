#!/bin/bash
# slurm-down.sh DIR [--purge]    Stops what slurm-up.sh DIR started (jobs too); --purge also removes DIR.
. "$(dirname "$(readlink -f "$0")")/testbed-lib.sh"
D=$(state_dir down "${1:-}") || { note "nothing there"; exit 0; }
export SLURM_CONF=$D/slurm.conf
if alive "$D/slurmctld.pid" slurmctld; then
    timeout 5 scancel --state=PENDING --quiet 2>/dev/null; timeout 5 scancel --full --quiet -u "$(id -un)" 2>/dev/null
    timeout 5 squeue -h -o %A 2>/dev/null | xargs -r timeout 5 scancel --full --quiet 2>/dev/null
    none() { [ -z "$(timeout 5 squeue -h 2>/dev/null)" ]; }
    wait_until 4 none
fi
for f in "$D"/slurmd-*.pid; do [ ! -e "$f" ] || stop "$f" slurmd; done
stop "$D/slurmctld.pid" slurmctld 10
stop "$D/munged.pid" munged
# what still runs under this cluster: step daemons carry its marker, tasks its SLURM_CONF and a job id
left=$(procs_with_env "SLURM_CONF=$D/slurm.conf" SLURM_JOB_ID=
       procs_with_env "SLURM_CONF=$D/slurm.conf" | while read -r p; do
           if running "$p" slurmstepd; then echo "$p"; fi; done)
[ -z "$left" ] || kill -KILL $left 2>/dev/null
rm -f "$D"/munge/socket*
[ "${2:-}" != --purge ] || rm -rf "$D"
exit 0
