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

# Prints a source line for main of another suite, at the mirror that this machine uses for bookworm.
suite_source() {
	local uri
	uri=$(apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
		awk '$2 == "bookworm" && $3 == "main" { print $1; exit }')
	[ -n "$uri" ] || { echo "no apt source for bookworm main is configured" >&2; return 1; }
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $1 main"
}
