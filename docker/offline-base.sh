#!/bin/sh
# Makes the base image nsabench/offline-base:bookworm from a Debian mirror, where no registry can be
# reached. It holds Python and the C compiler, so that the build installs nothing from the system.
#
# Usage: docker/offline-base.sh [MIRROR]       (as root; needs debootstrap and a Docker daemon)
#   DEBIAN_SNAPSHOT=20260901T000000Z takes the packages of that day from snapshot.debian.org.
set -eu
image=${IMAGE:-nsabench/offline-base:bookworm}
mirror=${1:-http://deb.debian.org/debian}
if [ -n "${DEBIAN_SNAPSHOT:-}" ]; then
    mirror=http://snapshot.debian.org/archive/debian/$DEBIAN_SNAPSHOT
fi
for tool in debootstrap docker; do
    if ! command -v "$tool" >/dev/null; then
        echo "offline-base: $tool is not installed; apt-get install debootstrap docker.io" >&2
        exit 3
    fi
done
if [ "$(id -u)" != 0 ]; then
    echo "offline-base: debootstrap needs root; run it with sudo" >&2
    exit 3
fi
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
packages="ca-certificates gcc libc6-dev python3.11 python3.11-dev python3.11-venv"
make_root() {
    debootstrap --variant=minbase bookworm "$root" "$mirror"
    cp -L /etc/resolv.conf "$root"/etc/resolv.conf
    # Not by debootstrap --include, which configures packages in an order that venv does not survive.
    DEBIAN_FRONTEND=noninteractive chroot "$root" \
        apt-get install -y -q --no-install-recommends $packages
}
if ! make_root >"$root.log" 2>&1; then
    echo "offline-base: debootstrap failed; the end of $root.log:" >&2
    tail -5 "$root.log" >&2
    exit 1
fi
rm -f "$root.log"
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* \
    "$root"/usr/share/doc "$root"/usr/share/man "$root"/usr/share/locale
# Behind a proxy with a certificate authority of its own, pip in the build must know it.
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
    cp /etc/ssl/certs/ca-certificates.crt "$root"/etc/ssl/certs/ca-certificates.crt
fi
tar -C "$root" --sort=name --numeric-owner -c . | docker import - "$image"
