package main

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// hostsOf counts the hosts that the options named by lists (a,b:4,c) and by files (one a line) name. Where none are named it is
// the number of nodes of the allocation, and 1 without one.
func hostsOf(contexts []appContext, c *command, lists, files []string) int {
	hosts := map[string]bool{}
	named := false
	for i := range contexts {
		for _, o := range contexts[i].options {
			switch {
			case slices.Contains(lists, o.name):
				named = true
				for host := range strings.SplitSeq(o.value, ",") {
					hosts[hostName(host)] = true
				}
			case slices.Contains(files, o.name):
				named = true
				if !addHosts(hosts, o.value) {
					return 0
				}
			}
		}
	}
	if named {
		return len(hosts)
	}
	return max(allocationNodes(c.environ), 1)
}

// hostName is the host in an entry of a list or file: without slots, options and comments.
func hostName(entry string) string {
	if i := strings.IndexAny(entry, ": \t#"); i >= 0 {
		entry = entry[:i]
	}
	return entry
}

// addHosts adds the hosts that a file names, and says whether it could be read.
func addHosts(hosts map[string]bool, path string) bool {
	text, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if host := hostName(strings.TrimSpace(line)); host != "" {
			hosts[host] = true
		}
	}
	return true
}

// allocationNodes is the number of nodes of the batch system's allocation that we are in, 0 where there is none or it is not known:
// Slurm, PBS and LSF.
func allocationNodes(environ map[string]string) int {
	if n, err := strconv.Atoi(environ["SLURM_JOB_NUM_NODES"]); err == nil {
		return n
	}
	hosts := map[string]bool{}
	for _, variable := range []string{"PBS_NODEFILE", "LSB_DJOB_HOSTFILE"} {
		if file := environ[variable]; file != "" && addHosts(hosts, file) {
			return len(hosts)
		}
	}
	return 0
}
