#!/bin/bash
# tests/lab/alone.sh PROGRAM JOBS     Runs PROGRAM, linked statically, in a root that has nothing but it: no C library, no shell, no
# /etc, no /proc and no /dev. JOBS is config/jobs. As root; what it mounts is in a mount namespace of its own, and goes with it. Prints
# what each step says; fails with the first that fails.
set -eu
if [ "${1:-}" != --inside ]; then
    # Processes of its own, too: a node that is left ends with it. A network of its own: only lo.
    exec unshare --mount --pid --fork --net --propagation private --kill-child "$0" --inside "$@"
fi
program=$(readlink -f "$2") jobs=$(readlink -f "$3")
root=/mnt
mount -t tmpfs alone $root
cp "$program" $root/nodectl
cp -r "$jobs" $root/jobs
printf 'name = "version"\ncommand = ["/nodectl", "--version"]\n' > $root/version.toml
(umask 077; printf 'a root with nothing in it but this one program 7f3e' > $root/secret)
python3 - <<'END'
import fcntl, socket, struct
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    # SIOCSIFFLAGS: IFF_UP. `ip` need not be there.
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 1))
END

nodectl() {
    echo "+ nodectl $*"
    /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/home NO_COLOR=1 NODECTL_NODE__ALLOW_ROOT=true \
        NODECTL_NETWORK__INTERFACES='["lo"]' NODECTL_NODE__CORES=1 chroot $root /nodectl "$@" 2>&1
}

nodectl run /version.toml
for job in train integrate; do
    nodectl run /jobs/$job.toml --into /$job
done
nodectl doctor
for node in a b; do
    nodectl --data-dir /$node join --detach --secret-file /secret
done
for _ in $(seq 600); do
    [ "$(nodectl --data-dir /a nodes --json | grep -c '"name"')" -lt 2 ] || break
    sleep 0.1
done
nodectl --data-dir /a nodes --json
nodectl --data-dir /b run /version.toml --into /joined
for node in a b; do
    nodectl --data-dir /$node leave
done
