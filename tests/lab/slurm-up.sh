#!/bin/bash
# slurm-up.sh [DIR]     Real Slurm on one host: munged, slurmctld, N slurmd (multiple-slurmd).
# All state lives in DIR (default: a fresh mktemp folder); prints DIR/env.sh, to be sourced by the clients.
#   SLURM_NODES=4 SLURM_CPUS=4 SLURM_GPUS=2 SLURM_MEM=2000   per-node, all may exceed what the machine has
#   SLURM_PRIVATE=1  each node has its own temporary folder (root only), as if nothing were shared
#   SLURM_NODE_TIMEOUT=30   seconds until a dead slurmd's node is DOWN
. "$(dirname "$(readlink -f "$0")")/testbed-lib.sh"
N=${SLURM_NODES:-4} CPUS=${SLURM_CPUS:-4} GPUS=${SLURM_GPUS:-2} MEM=${SLURM_MEM:-2000}
need_pkgs "slurmctld slurmd munged sinfo" slurm-wlm munge
[ "${SLURM_PRIVATE:-0}" = 0 ] || timeout 10 unshare --mount true || cannot "no mount namespaces"
D=$(state_dir up "${1:-}") || exit 1
case $D in *[\ ,\;%\[\]]*) die "DIR must have no spaces, commas, brackets, percent signs";; esac
if alive "$D/slurmctld.pid" slurmctld; then note "already up"; echo "$D/env.sh"; exit 0; fi
"$(dirname "$(readlink -f "$0")")/slurm-down.sh" "$D" >/dev/null 2>&1      # leftovers of a crash
ME=$(id -un) HOST=$(hostname -s) BASE=$(free_ports $((N + 1))) || die "no free ports"
trap '[ $? = 0 ] || "$(dirname "$(readlink -f "$0")")/slurm-down.sh" "$D" >/dev/null 2>&1' EXIT

CTL=127.0.0.1 AT="NodeHostname=$HOST NodeAddr=127.0.0.1 Port=$((BASE+1))-$((BASE+N))"
rm -rf "$D/state" "$D/spool" "$D/gpu"
mkdir -p "$D"/{state,spool,log,gpu,munge} && chmod 755 "$D/munge" && chmod 700 "$D/state" || exit 1
( umask 077; head -c 64 /dev/urandom > "$D/munge/key" )
GRES=; : > "$D/gres.conf"
if [ "$GPUS" -gt 0 ]; then                   # File= must be a character device: links to /dev/null will do
    for ((i=0; i<GPUS; i++)); do ln -s /dev/null "$D/gpu/fake$i"; done
    echo "NodeName=n[1-$N] Name=gpu Type=fake File=$D/gpu/fake[0-$((GPUS-1))] AutoDetect=off" > "$D/gres.conf"
    GRES="Gres=gpu:fake:$GPUS"
fi
cat > "$D/slurm.conf" <<CONF
ClusterName=t$BASE
SlurmctldHost=$HOST($CTL)
SlurmUser=$ME
SlurmdUser=$ME
SlurmctldPort=$BASE
AuthType=auth/munge
AuthInfo=socket=$D/munge/socket
CredType=cred/munge
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/spool/%n
SlurmctldPidFile=$D/slurmctld.pid
SlurmdPidFile=$D/slurmd-%n.pid
SlurmctldLogFile=$D/log/slurmctld.log
SlurmdLogFile=$D/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$D/log/jobcomp.txt
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=64
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
PriorityType=priority/basic
ReturnToService=2
KillWait=2
MinJobAge=600
SlurmctldTimeout=30
SlurmdTimeout=${SLURM_NODE_TIMEOUT:-30}
MessageTimeout=10
TCPTimeout=5
MailProg=/bin/true
GresTypes=gpu
NodeName=n[1-$N] $AT CPUs=$CPUS RealMemory=$MEM $GRES State=UNKNOWN
PartitionName=main Nodes=n[1-$N] Default=YES MaxTime=INFINITE OverSubscribe=NO State=UP
PartitionName=gpu Nodes=n[1-$N] MaxTime=INFINITE State=UP
PartitionName=short Nodes=n[1-$N] MaxTime=1 PriorityTier=10 State=UP
CONF
# nothing here uses cgroups, but slurmd loads the plugin it detects and gives up without a cgroup mount; v1 loads anywhere
echo 'CgroupPlugin=cgroup/v1' > "$D/cgroup.conf"
chmod 644 "$D"/*.conf
cat > "$D/env.sh" <<ENV
export SLURM_CONF=$D/slurm.conf
export SLURM_TESTBED=$D
ENV
export SLURM_CONF=$D/slurm.conf

# --force: munged otherwise refuses when a parent folder is not o+x (mktemp -d inside mktemp -d)
munged --force --key-file="$D/munge/key" --socket="$D/munge/socket" --pid-file="$D/munged.pid" \
       --log-file="$D/log/munged.log" --seed-file="$D/munge/seed" --num-threads=2 || die "munged: see $D/log"
wait_until 60 munge --socket="$D/munge/socket" -n || die "munged does not answer"
slurmctld -c 2>>"$D/log/start.err" || die "slurmctld: see $D/log"
T=${TMPDIR:-/tmp}
for ((i=1; i<=N; i++)); do
    set -- slurmd -c -N n$i
    if [ "${SLURM_PRIVATE:-0}" != 0 ]; then     # DIR stays reachable even when it lies in the temporary folder
        mkdir -p "$D/tmp$i"; chmod 1777 "$D/tmp$i"
        set -- unshare --mount sh -c "cd $D && mount --bind $D/tmp$i $T && mkdir -p $D &&
            mount --no-canonicalize --bind . $D || exit 1; cd /; exec $*"
    fi
    "$@" 2>>"$D/log/start.err" || die "slurmd n$i: see $D/log"
done
idle() { [ "$(sinfo -h -N -p main -o %t | grep -c '^idle$')" = "$N" ]; }
wait_until 90 idle || { sinfo >&2; die "nodes did not become idle: see $D/log"; }

echo "$D/env.sh"
