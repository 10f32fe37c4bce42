#!/bin/bash
# packaging/install.sh [--user] [--secret-file FILE] [BINARY]     Installs nodectl on this machine: the program, its manual pages, its
# packaging/install.sh [--user] --uninstall                       completions for shells, and a service that systemd starts.
#   BINARY          default: what is beside this script (of an unpacked tarball), else target/dist/nodectl of this checkout, else
#                   target/release/nodectl
#   --user          for this user alone, without root: below ~/.local, with a service of the user's own systemd
#   --secret-file   the cluster's secret; without it, /etc/nodectl/secret (--user: ~/.config/nodectl/secret) is kept, or made anew on
#                   the first machine
#   --uninstall     removes what was installed, and nothing else: secret, settings and state stay
#   DESTDIR=dir     work below dir; make no user, start and stop nothing (for packages and tests)
# Running it again upgrades the program and keeps secret, settings and state.
set -eu
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
dest=${DESTDIR:-}
arguments=$* secret_from= user= uninstall= binary=$here/nodectl
[ -x "$binary" ] || binary=$here/../target/dist/nodectl
[ -x "$binary" ] || binary=$here/../target/release/nodectl
die() { echo "install.sh: $1" >&2; [ -z "${2:-}" ] || echo "hint: $2" >&2; exit "${3:-1}"; }
while [ $# -gt 0 ]; do
    case $1 in
    --user) user=1; shift ;;
    --uninstall) uninstall=1; shift ;;
    --secret-file) [ $# -ge 2 ] || die "--secret-file needs a file" "" 2; secret_from=$2; shift 2 ;;
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) die "unknown option $1 (see --help)" "" 2 ;;
    *) binary=$1; shift ;;
    esac
done
if [ -n "$user" ]; then
    settings=${XDG_CONFIG_HOME:-$HOME/.config}/nodectl
    programs=$HOME/.local/bin share=${XDG_DATA_HOME:-$HOME/.local/share} units=${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user
    unit=nodectl.user.service systemctl=(systemctl --user)
else
    settings=/etc/nodectl programs=/usr/local/bin share=/usr/local/share units=/etc/systemd/system
    unit=nodectl.service systemctl=(systemctl)
    [ -n "$dest" ] || [ "$(id -u)" = 0 ] || die "needs root" "sudo $0 $arguments; or, for this user alone: $0 --user $arguments"
fi
# What was installed: a path in each line, directories with a slash behind them.
list=$dest$settings/installed

# systemd, or this user's, answers.
has_systemd() { [ -z "$dest" ] && [ -d /run/systemd/system ] && "${systemctl[@]}" show-environment > /dev/null 2>&1; }

# Removes the files that a list names, then the directories that it has left empty.
remove() {
    local path
    while IFS= read -r path; do
        case $path in */) ;; *) rm -f "$dest$path" ;; esac
    done < "$1"
    tac "$1" | while IFS= read -r path; do
        case $path in */) rmdir "$dest$path" 2> /dev/null || true ;; esac
    done
}

if [ -n "$uninstall" ]; then
    [ -f "$list" ] || die "$list is not there, so nothing is known to be installed"
    ! has_systemd || "${systemctl[@]}" disable --now nodectl
    mv "$list" "$list.old"
    remove "$list.old"
    rm "$list.old"
    rmdir "$dest$settings" 2> /dev/null || true
    ! has_systemd || "${systemctl[@]}" daemon-reload
    echo "removed; the secret and settings in $settings and the node's data directory are left"
    exit 0
fi

[ -x "$binary" ] || die "no program at $binary" "build it: cargo build --profile dist"
[ -z "$secret_from" ] || [ -s "$secret_from" ] || die "the secret file $secret_from is missing or empty"
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$binary" man "$made/man" > "$made/said" 2>&1 || die "$binary does not run here: $(grep -m 1 . "$made/said")"
[ -f "$made/man/nodectl.1" ] || die "$binary is a program, but not nodectl"
for shell in bash zsh fish; do "$binary" completions $shell > "$made/$shell"; done

# Makes a directory, and those above it that are missing.
directory() {
    [ ! -d "$dest$1" ] || return 0
    directory "$(dirname "$1")"
    mkdir -m 0755 "$dest$1"
    echo "$1/" >> "$made/list"
}
# Renamed into place: a running node keeps its program, and no half-written one is ever started.
put() {
    directory "$(dirname "$3")"
    install -m "$1" "$2" "$dest$3.new"
    mv -f "$dest$3.new" "$dest$3"
    echo "$3" >> "$made/list"
}
[ -z "$dest" ] || mkdir -p "$dest"
: > "$made/list"
# Directories that an earlier installation made are still its own.
[ ! -f "$list" ] || grep '/$' "$list" >> "$made/list" || true
put 0755 "$binary" "$programs/nodectl"
put 0644 "$here/$unit" "$units/nodectl.service"
for page in "$made"/man/*.1; do put 0644 "$page" "$share/man/man1/$(basename "$page")"; done
put 0644 "$made/bash" "$share/bash-completion/completions/nodectl"
put 0644 "$made/zsh" "$share/zsh/site-functions/_nodectl"
put 0644 "$made/fish" "$share/fish/vendor_completions.d/nodectl.fish"
directory "$settings"
# What an earlier version had and this one has not.
if [ -f "$list" ]; then
    grep -vxFf "$made/list" "$list" > "$made/gone" || true
    remove "$made/gone"
fi
install -m 0644 "$made/list" "$list"

secret=$dest$settings/secret new=
umask 077
if [ -n "$secret_from" ]; then
    cat "$secret_from" > "$secret.new"; mv -f "$secret.new" "$secret"
elif [ ! -s "$secret" ]; then
    # 30 characters of 32, 150 bits, in groups that can be read out.
    head -c 4096 /dev/urandom | tr -dc 'abcdefghjkmnpqrstvwxyz0123456789' | head -c 30 | sed 's/...../&-/g; s/-$//' > "$secret.new"
    mv -f "$secret.new" "$secret"; new=1
fi
chmod 0600 "$secret"

if [ -z "$dest" ] && [ -z "$user" ]; then
    id nodectl >/dev/null 2>&1 ||
        useradd --system --user-group --home-dir /var/lib/nodectl --no-create-home --shell /usr/sbin/nologin nodectl
    for group in video render; do
        ! getent group "$group" >/dev/null || usermod --append --groups "$group" nodectl
    done
fi
if has_systemd; then
    "${systemctl[@]}" daemon-reload
    "${systemctl[@]}" enable nodectl
    "${systemctl[@]}" restart nodectl
    if [ -n "$user" ]; then
        echo "nodectl runs while $(id -un) is logged in ('loginctl enable-linger' keeps it); 'nodectl nodes' shows the cluster"
    else
        echo "nodectl runs; 'nodectl nodes' (as root, or as a user of the group nodectl: usermod -aG nodectl USER) shows the cluster"
    fi
elif [ -z "$dest" ] && [ -n "$user" ]; then
    echo "installed; this user's systemd does not answer, so nothing was started: $programs/nodectl join --detach --secret-file $secret"
elif [ -z "$dest" ]; then
    echo "installed; systemd does not run here, so nothing was started"
fi
[ -n "$dest" ] || case :$PATH: in *:"$programs":*) ;; *) echo "$programs is not in the PATH of this shell" ;; esac
[ -z "$new" ] || echo "a new cluster secret is in $secret; give it to the other machines: install.sh ${user:+--user }--secret-file FILE"
