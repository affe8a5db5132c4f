#!/bin/bash
# Unpacks ptp4l, chronyd and ntpd of Debian into build/clock/ and prints that folder. They are not installed: two daemons that steer the
# clock cannot be side by side, and what is installed may be started and set this machine's clock. What is there already is kept.
set -eu
cd "$(dirname "$0")/../.."
B=$(realpath -m "${B:-build}")
dir=$B/clock
mkdir -p "$B"
exec 9>"$B/.clock.lock"
flock 9
packages="linuxptp chrony ntpsec"
if [ "$(cat "$dir/packages" 2>/dev/null)" != "$packages" ]; then
	new=$dir.new
	rm -rf "$new" "$dir"
	mkdir "$new"
	(cd "$new" && apt-get download -qq -o APT::Sandbox::User=root $packages) >&2
	for deb in "$new"/*.deb; do
		dpkg-deb -x "$deb" "$new"
		rm "$deb"
	done
	echo "$packages" >"$new/packages"
	mv "$new" "$dir"
fi
echo "$dir"
