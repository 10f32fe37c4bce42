#!/bin/bash
# packaging/install.sh [--secret-file FILE] [BINARY]     Installs nodectl as a system service on this machine.
#   BINARY          default: what is beside this script (of an unpacked tarball), else target/dist/nodectl of this checkout, else
#                   target/release/nodectl
#   --secret-file   the cluster's secret; without it, /etc/nodectl/secret is kept, or made anew on the first machine
#   DESTDIR=dir     install below dir; make no user, start nothing (for packages and tests)
# Running it again upgrades the program and keeps secret, settings and state.
set -eu
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
dest=${DESTDIR:-}
arguments=$* secret_from= binary=$here/nodectl
[ -x "$binary" ] || binary=$here/../target/dist/nodectl
[ -x "$binary" ] || binary=$here/../target/release/nodectl
while [ $# -gt 0 ]; do
    case $1 in
    --secret-file) [ $# -ge 2 ] || { echo "install.sh: --secret-file needs a file" >&2; exit 2; }; secret_from=$2; shift 2 ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "install.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
    *) binary=$1; shift ;;
    esac
done
die() { echo "install.sh: $1" >&2; [ -z "${2:-}" ] || echo "hint: $2" >&2; exit 1; }
[ -x "$binary" ] || die "no program at $binary" "build it: cargo build --profile dist"
[ -z "$secret_from" ] || [ -s "$secret_from" ] || die "the secret file $secret_from is missing or empty"
[ -n "$dest" ] || [ "$(id -u)" = 0 ] || die "needs root" "sudo $0 $arguments"

# Renamed into place: a running node keeps its program, and no half-written one is ever started.
install -D -m 0755 "$binary" "$dest/usr/local/bin/nodectl.new"
mv -f "$dest/usr/local/bin/nodectl.new" "$dest/usr/local/bin/nodectl"
install -D -m 0644 "$here/nodectl.service" "$dest/etc/systemd/system/nodectl.service"

secret=$dest/etc/nodectl/secret made=
install -d -m 0755 "$dest/etc/nodectl"
umask 077
if [ -n "$secret_from" ]; then
    cat "$secret_from" > "$secret.new"; mv -f "$secret.new" "$secret"
elif [ ! -s "$secret" ]; then
    # 30 characters of 32, 150 bits, in groups that can be read out.
    head -c 4096 /dev/urandom | tr -dc 'abcdefghjkmnpqrstvwxyz0123456789' | head -c 30 | sed 's/...../&-/g; s/-$//' > "$secret.new"
    mv -f "$secret.new" "$secret"; made=1
fi
chmod 0600 "$secret"

if [ -z "$dest" ]; then
    id nodectl >/dev/null 2>&1 ||
        useradd --system --user-group --home-dir /var/lib/nodectl --no-create-home --shell /usr/sbin/nologin nodectl
    for group in video render; do
        ! getent group "$group" >/dev/null || usermod --append --groups "$group" nodectl
    done
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        systemctl enable nodectl
        systemctl restart nodectl
        echo "nodectl runs; 'nodectl nodes' (as root, or as a user of the group nodectl: usermod -aG nodectl USER) shows the cluster"
    else
        echo "installed; systemd does not run here, so nothing was started"
    fi
fi
[ -z "$made" ] || echo "a new cluster secret is in $secret; give it to the other machines: install.sh --secret-file FILE"
