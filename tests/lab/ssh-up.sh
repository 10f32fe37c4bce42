#!/bin/bash
# ssh-up.sh [DIR]     "Hosts" h1..hN, each its own sshd with its own host key and host name.
# State lives in DIR (default: a fresh mktemp folder); prints DIR/env.sh: puts ssh/scp/sftp wrappers on PATH that use
# DIR/ssh_config, so that plain `ssh h2 CMD` works (OpenSSH takes ~ from the account, not from $HOME).
#   SSH_HOSTS=3           N
#   SSH_SETENV='A=1 B=2'  variables that every session has
# Host i listens on 127.0.0.(i+1), one free high port for all.
#   SSH_PRIVATE=1  each host has its own empty home and /tmp (root only), as if nothing were shared
# As root: host names by UTS namespaces.  As another user: only that user can log in, one host name for all.
. "$(dirname "$(readlink -f "$0")")/testbed-lib.sh"
HERE=$(dirname "$(readlink -f "$0")") N=${SSH_HOSTS:-3} ME=$(id -un)
need_pkgs "/usr/sbin/sshd ssh ssh-keygen" openssh-server openssh-client
D=$(state_dir up "${1:-}") || exit 1
hosts_up() { local i; for ((i=1; i<=N; i++)); do alive "$D/h$i/pid" sshd || return 1; done; }
if hosts_up; then note "already up"; echo "$D/env.sh"; exit 0; fi
"$HERE/ssh-down.sh" "$D" >/dev/null 2>&1
trap '[ $? = 0 ] || "$HERE/ssh-down.sh" "$D" >/dev/null 2>&1' EXIT
pam=no root=; [ "$(id -u)" != 0 ] || root=1
if [ -n "$root" ]; then
    timeout 10 unshare --uts --mount true || cannot "no UTS and mount namespaces"
    mkdir -p /run/sshd && chmod 755 /run/sshd           # sshd's privilege separation folder
    case $(getent shadow "$ME" | cut -d: -f2) in '!'*) pam=yes;; esac     # without PAM, sshd refuses locked accounts
fi
PORT=$(free_ports 1) || die "no free port"
rm -rf "$D"/h[0-9]* ; mkdir -p "$D/bin"
[ -s "$D/id_ed25519" ] || ssh-keygen -q -t ed25519 -N '' -C testbed -f "$D/id_ed25519" || die "ssh-keygen"
cp "$D/id_ed25519.pub" "$D/authorized_keys"; : > "$D/known_hosts"; : > "$D/hosts"
cat > "$D/ssh_config" <<CONF
Host *
    Port $PORT
    User $ME
    IdentityFile $D/id_ed25519
    IdentitiesOnly yes
    UserKnownHostsFile $D/known_hosts
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    HashKnownHosts no
    CheckHostIP no
    BatchMode yes
    ConnectTimeout 5
CONF
for ((i=1; i<=N; i++)); do
    H=$D/h$i; mkdir -p "$H/home" "$H/tmp"; chmod 700 "$H/home"; chmod 1777 "$H/tmp"
    A=127.0.0.$((i+1))
    ssh-keygen -q -t ed25519 -N '' -C "h$i" -f "$H/host_key" || die "ssh-keygen"
    cat > "$H/sshd_config" <<CONF
ListenAddress $A
Port $PORT
HostKey $H/host_key
PidFile $H/pid
AuthorizedKeysFile $D/authorized_keys
StrictModes no
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM $pam
UseDNS no
PrintMotd no
PrintLastLog no
MaxStartups 100:30:200
MaxSessions 100
AcceptEnv *
PermitUserEnvironment no
SetEnv TESTBED_HOST=h$i ${SSH_SETENV:-}
AllowTcpForwarding yes
AllowStreamLocalForwarding yes
Subsystem sftp internal-sftp
LogLevel VERBOSE
CONF
    echo "$A h$i" >> "$D/hosts"
    printf 'Host h%s\n    HostName %s\n    HostKeyAlias h%s\n' "$i" "$A" "$i" >> "$D/ssh_config"
    echo "h$i,$A,[$A]:$PORT $(cut -d' ' -f1,2 "$H/host_key.pub")" >> "$D/known_hosts"
    start="exec $(command -v sshd) -D -e -f $H/sshd_config"
    if [ -n "$root" ]; then
        if [ "${SSH_PRIVATE:-0}" != 0 ]; then      # DIR stays reachable even when it lies under /tmp or the home
            start="cd $D && mount --bind $H/home $(getent passwd "$ME" | cut -d: -f6) && mount --bind $H/tmp /tmp &&
                   mkdir -p $D && mount --no-canonicalize --bind . $D || exit 1; cd /; $start"
        fi
        set -- unshare --uts --mount sh -c "hostname h$i; $start"
    else set -- sh -c "$start"; fi
    setsid "$@" </dev/null >"$H/log" 2>&1 &
done
real() { local c; for c in $(type -ap "$1"); do [ -e "${c%/*}/../ssh_config" ] || { echo "$c"; return; }; done; }   # no wrapper
for c in ssh scp sftp; do
    printf '#!/bin/sh\nexec %s -F %s "$@"\n' "$(real $c)" "$D/ssh_config" > "$D/bin/$c"; chmod 755 "$D/bin/$c"
done
cat > "$D/env.sh" <<ENV
export PATH=$D/bin:\$PATH
export SSH_TESTBED=$D SSH_TESTBED_CONFIG=$D/ssh_config
ENV
wait_until 60 hosts_up || { tail -n 3 "$D"/h*/log >&2; die "an sshd did not start"; }
answer() {      # by the built-in sftp, which runs no shell: start-up files can be slow
    local i p=(); for ((i=1; i<=N; i++)); do timeout 20 "$D/bin/ssh" -o ConnectTimeout=20 -s "h$i" sftp </dev/null & p+=($!); done
    for i in "${p[@]}"; do wait "$i" || return 1; done
}
wait_until 90 answer || { tail -n 5 "$D"/h*/log >&2; die "a host does not let us in"; }
echo "$D/env.sh"
