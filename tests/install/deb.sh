#!/bin/bash
# Run in a Debian root, as its root: installs the package, traces a program with it, upgrades it, and takes it away again.
#   tests/install/deb.sh PACKAGE NEWER CLIENT
# Prints a line "ok NAME" or "FAIL NAME: why" for each thing that it looks at.
set -u
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
package=$1 newer=$2 client=$3
snippet=/etc/slurm/plugstack.conf.d/sigmatrace.conf
say() { if [ "$2" = 0 ]; then echo "ok $1"; else echo "FAIL $1: ${3:-exit status $2}"; fi; }
apt() { apt-get -y -qq -o Dpkg::Use-Pty=0 "$@" >/tmp/apt.log 2>&1 || { cat /tmp/apt.log >&2; return 1; }; }
everything() { find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run -o -path /var/lib -o -path /var/cache -o -path /var/log \) -prune -o -print | sort; }

apt update
everything >/tmp/before
apt install --no-install-recommends "$package"
say deb-installs $?
grep -q '^#optional /usr/lib/slurm/spank_sigmatrace-' "$snippet" && ! grep -q '^[^#]' "$snippet"
say deb-switches-nothing-on $? "$(cat "$snippet")"
sigmatrace launch -o /tmp/run -- "$client" -n 4 -o put,tag,am >/tmp/launch.log 2>&1 && sigmatrace info --json /tmp/run >/tmp/info && grep -q '"ucp"' /tmp/info && grep -q '"complete": 2' /tmp/info
say deb-traces $? "$(cat /tmp/launch.log /tmp/info)"
test -s /usr/share/man/man1/sigmatrace.1.gz && test -s /usr/share/man/man7/sigmatrace-slurm.7.gz
say deb-has-pages $?

sed -i 's/^#optional/optional/' "$snippet"
cp "$snippet" /tmp/snippet
apt install --no-install-recommends "$newer" && [ "$(dpkg-query -W -f '${Version}' sigmatrace)" = "$(dpkg-deb -f "$newer" Version)" ]
say deb-upgrades $?
cmp "$snippet" /tmp/snippet >&2
say deb-keeps-the-line $? "$snippet is not as the site left it"
apt remove sigmatrace && [ ! -e /usr/bin/sigmatrace ] && cmp "$snippet" /tmp/snippet >&2
say deb-remove-keeps-the-line $?
apt purge sigmatrace
say deb-purges $?
everything >/tmp/after
left=$(diff /tmp/before /tmp/after)
say deb-leaves-nothing $? "$(echo "$left" | head -5 | tr '\n' ' ')"
