package main

import (
	"fmt"
	"io"
	"strconv"
)

// placement is where ranks write their captures and how those get to the run directory.
type placement struct {
	directory string // where ranks write
	nodes     int    // the most hosts that ranks may be on, 0 where that is not known
	remote    bool   // ranks may be on other hosts
	collect   bool   // by a job step on each node, from a scratch directory
	network   bool   // the run directory is on a network file system
	fs        string // the run directory's file system

	memory        string // where captures have memory on this host, "" nowhere
	memoryLimit   int64  // bytes
	withoutMemory string // why nowhere
}

// place finds the placement for the run directory dir. A scratch directory from which nothing could bring captures home is refused.
func (s *session) place(dir string) (*placement, error) {
	p := &placement{nodes: s.dialect.nodes(s.cmd)}
	p.remote = p.nodes != 1 || s.dialect.elsewhere
	p.fs, p.network = fileSystem(dir)
	scratch := s.profile.Text("record.scratch") != ""
	if scratch && p.remote {
		if reason := s.uncollectable(); reason != "" {
			return nil, failf("leave record.scratch empty, so that captures go to the run directory at once, or launch inside an allocation of Slurm's",
				"record.scratch keeps captures on the nodes, and nothing would bring them home: %s", reason)
		}
		p.collect = true
	}
	var err error
	if p.directory, err = s.captureDirectory(dir, p.collect); err != nil {
		return nil, err
	}
	if p.memoryLimit, p.withoutMemory = s.memory(p); p.withoutMemory == "" {
		p.memory = s.memoryFolder(dir)
	} else if s.profile.Text("record.place") == "memory" {
		return nil, failf("set record.place to auto or to disk", "record.place is memory, but %s", p.withoutMemory)
	}
	return p, nil
}

// uncollectable says why no job step can reach the nodes when the command has ended, "" where one can.
func (s *session) uncollectable() string {
	environ := s.cmd.environ
	switch het, _ := strconv.Atoi(environ["SLURM_HET_SIZE"]); {
	case environ["SLURM_JOB_ID"] == "" && s.dialect.name == srun.name:
		return "outside an allocation srun makes one of its own, which ends with the command"
	case environ["SLURM_JOB_ID"] == "":
		return "ranks may be on several hosts, and this is no allocation of Slurm's"
	case het > 1:
		return "the job is heterogeneous, and a step reaches one component only"
	}
	return ""
}

// line says where captures of several hosts go and why, "" where there is one host.
func (p *placement) line(back string) string {
	hosts := "all nodes"
	if p.nodes > 0 {
		hosts = fmt.Sprintf("%d node", p.nodes)
		if p.nodes > 1 {
			hosts += "s"
		}
	}
	switch {
	case !p.remote:
		return ""
	case p.collect:
		return fmt.Sprintf("captures of %s stay in %s on each, since record.scratch is set, until srun collects them", hosts, p.directory)
	case p.network && back != "mapped":
		return fmt.Sprintf("captures of %s go to the run directory by the written back end, since it is on a network file system (%s)", hosts, p.fs)
	}
	return fmt.Sprintf("captures of %s go to the run directory (%s), since record.scratch is not set", hosts, p.fs)
}

// warnOfLocal warns where nodes are likely not to see the run directory.
func (p *placement) warnOfLocal(w io.Writer, dir string) {
	if p.nodes != 1 && p.remote && !p.network {
		warn(w, "name a directory that all nodes share, with -o or in output.directory",
			"run directory %s is on a local file system (%s): ranks on nodes that do not share it are not recorded", dir, p.fs)
	}
}
