# shellcheck shell=bash
# Sourced where a Debian root is made: how this machine reaches Debian's packages, read from its own apt configuration.

# Fills the array apt_sources with the files that name sources for bookworm.
find_apt_sources() {
	local f
	apt_sources=()
	for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
		case $f in *backports*) continue ;; esac
		if [ -f "$f" ] && grep -q '^[^#]*bookworm' "$f"; then apt_sources+=("$f"); fi
	done
}

# Prints proxies, retries and date checks in the form of an apt configuration file.
apt_options() { apt-config dump | grep -E '^Acquire::(http|https|Check-|Retries)' || true; }
