package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sigmatrace/sigmatrace/launcher/mover"
	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/pack"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"golang.org/x/sys/unix"
)

// collectParts brings home what steps of the run under the Slurm plugin have left on this host. It returns whether nothing is left here.
func collectParts(ctx context.Context, dir *rundir.Dir) (home bool, err error) {
	nodes, failed := dir.ReadNodes()
	home = failed == nil
	for i := range nodes {
		n := &nodes[i]
		if n.Host != nodeName() || !n.Left() {
			continue
		}
		if pid, start, is := strings.Cut(n.Owner, "."); is && !mover.Ended(pid, start) {
			home = false // its tasks go on, and it collects when they have ended
			continue
		}
		if err := collectPart(ctx, dir, n); err != nil {
			failed = errors.Join(failed, err)
		}
		home = home && !n.Left()
	}
	return home, failed
}

// collectOwn is the plugin's collection of one part, in the middle of the end of its tasks.
func collectOwn(ctx context.Context, dir *rundir.Dir, part string) (home bool, err error) {
	if err := rundir.CheckPart(part); err != nil {
		return false, &usageError{err: err}
	}
	n, err := dir.ReadNode(part)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, nil // it was never decided: captures are in the run directory
	case err != nil:
		return false, err
	case n.Place == rundir.PlaceShared:
		return true, nil
	}
	err = collectPart(ctx, dir, n)
	return err == nil && !n.Left(), err
}

// collectPart packs what is there, says so in the node's account, and then removes what is packed and whose process has ended: whoever is killed
// on the way leaves a capture twice, and not nowhere.
func collectPart(ctx context.Context, dir *rundir.Dir, n *rundir.Node) error {
	start := time.Now()
	done := &rundir.Collected{}
	if n.Collected != nil {
		*done = *n.Collected
		done.Reason, done.Left = "", nil
	}
	var remove []string
	release, err := lockPart(ctx, dir, n.Directory)
	switch {
	case errors.Is(err, fs.ErrNotExist) && n.Collected != nil && !n.Left():
		return nil
	case errors.Is(err, fs.ErrNotExist): // a memory file system goes with the machine
		done.Reason = n.Directory + " is not there any more"
	case err != nil:
		return fmt.Errorf("collecting captures: %w", err)
	default:
		defer release()
		remove = packPart(ctx, dir, n, done)
	}
	done.Seconds += time.Since(start).Seconds()
	n.Collected = done
	if err := dir.WriteNode(n); err != nil {
		return err
	}
	for _, path := range remove {
		err = errors.Join(err, os.Remove(path))
	}
	if release != nil {
		removeEmpty(n.Directory)
		return err
	}
	return nil
}

// packPart packs the part's captures, and returns those that are to be removed.
func packPart(ctx context.Context, dir *rundir.Dir, n *rundir.Node, done *rundir.Collected) (remove []string) {
	waitForEnd(ctx, n.Directory)
	files, err := pack.Files(n.Directory)
	ended := map[string]int64{} // length by name
	for _, f := range files {
		if !goesOn(f.Name) {
			ended[f.Name] = f.Bytes
		}
	}
	packed := map[string]bool{}
	if len(files) > 0 {
		p, packErr := pack.Write(ctx, dir.Capture(), n.Part, n.Directory, files)
		err = errors.Join(err, packErr)
		done.Packed += p.Written
		for _, f := range p.Files {
			if size, is := ended[f.Name]; !is || size != f.Bytes {
				continue
			}
			packed[f.Name] = true
			remove = append(remove, filepath.Join(n.Directory, f.Name))
			if strings.HasSuffix(f.Name, capture.Extension) {
				done.Files++
				done.Bytes += f.Bytes
			}
		}
	}
	for _, f := range files {
		if !packed[f.Name] {
			done.Left = append(done.Left, rundir.LeftOver{Path: filepath.Join(n.Directory, f.Name), Bytes: f.Bytes})
		}
	}
	if err != nil || len(done.Left) > 0 {
		done.Reason = whyLeft(ctx, err)
	}
	return remove
}

// whyLeft says in a line why captures stayed.
func whyLeft(ctx context.Context, err error) string {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return "the time was over"
	case errors.Is(err, unix.ENOSPC):
		return "the run directory's file system is full"
	case err != nil:
		return strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return "processes of the step go on"
}

// goesOn says whether the process of a capture, <node>/PID.START.IMAGE.capture, may still write to it.
func goesOn(name string) bool {
	parts := strings.Split(filepath.Base(name), ".")
	return len(parts) == 4 && !mover.Ended(parts[0], parts[1])
}

// waitForEnd gives processes that are ending a moment for it.
func waitForEnd(ctx context.Context, folder string) {
	const most = 500 * time.Millisecond // of the few seconds that a collection has
	for until := time.Now().Add(most); time.Now().Before(until) && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		files, _ := pack.Files(folder)
		on := false
		for _, f := range files {
			on = on || goesOn(f.Name)
		}
		if !on {
			return
		}
	}
}

// lockPart takes the part's directory, the user's own, alone among this host's processes. Nobody waits for who may be stopped.
func lockPart(ctx context.Context, dir *rundir.Dir, folder string) (release func(), err error) {
	f, err := os.OpenFile(folder, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	var own unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &own); err != nil || own.Mode&0o077 != 0 || !ownedAs(&own, dir.Path()) {
		f.Close()
		return nil, fmt.Errorf("%s is not the run's", folder)
	}
	for until := time.Now().Add(othersTurn); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err != unix.EWOULDBLOCK {
			return func() { f.Close() }, nil // a file system without locks is taken as it is
		}
		if ctx.Err() != nil || time.Now().After(until) {
			f.Close()
			return nil, fmt.Errorf("another process collects %s", folder)
		}
	}
}

// removeEmpty removes the folder and those in it as far as they are empty.
func removeEmpty(folder string) {
	entries, _ := os.ReadDir(folder)
	for _, e := range entries {
		if e.IsDir() {
			os.Remove(filepath.Join(folder, e.Name()))
		}
	}
	os.Remove(folder)
}

// resumeCollecting collects what is left on this host, and makes what came from all of them readable.
func resumeCollecting(ctx context.Context, w io.Writer, dir *rundir.Dir) {
	if _, err := collectParts(ctx, dir); err != nil {
		warn(w, "", "%v", err)
	}
	nodes, err := dir.TakeNodes()
	if err != nil {
		warn(w, "", "%v", err)
	}
	tellNodes(w, dir, nodes)
	unpack(ctx, w, dir)
}

// othersCollect is how long nodes may take to collect when the step has ended: mpirun does not wait for its daemons' steps, and a collection that was
// killed together with the tasks is done again behind them.
const othersCollect = collectTime + 2*time.Second

// settledNodes reads the accounts of the nodes when all have collected, or the time is over.
func settledNodes(dir *rundir.Dir, grace time.Duration) (nodes []rundir.Node, err error) {
	for until := time.Now().Add(grace); ; time.Sleep(50 * time.Millisecond) {
		nodes, err = dir.ReadNodes()
		open := slices.ContainsFunc(nodes, func(n rundir.Node) bool { return n.Left() && n.Collected == nil })
		if !open || !time.Now().Before(until) {
			return nodes, err
		}
	}
}

// tellNodes names what is still on nodes, and returns whether nothing is.
func tellNodes(w io.Writer, dir *rundir.Dir, nodes []rundir.Node) bool {
	home := true
	for i := range nodes {
		if n := &nodes[i]; n.Left() {
			home = false
			warnLeft(w, dir, n)
		} else if n.Collected != nil && n.Collected.Reason != "" {
			home = false
			warn(w, "", "captures of %s are not all here: %s", n.Host, n.Collected.Reason)
		}
	}
	return home
}

// unpack makes captures readable that came from nodes.
func unpack(ctx context.Context, w io.Writer, dir *rundir.Dir) bool {
	if err := pack.Unpack(ctx, dir.Capture(), runtime.NumCPU()); err != nil {
		warn(w, "see to it, then run: sigmatrace merge "+quote(dir.Path()), "%v", err)
		return false
	}
	return true
}

func warnLeft(w io.Writer, dir *rundir.Dir, n *rundir.Node) {
	hint := fmt.Sprintf("on %s run: sigmatrace collect %s; then: sigmatrace merge %s", n.Host, quote(dir.Path()), quote(dir.Path()))
	if n.Collected == nil {
		warn(w, hint, "captures of %s have not been collected: what there is lies in %s on that node", n.Host, n.Directory)
		return
	}
	warn(w, hint, "%d captures of %s (%s) are still on that node, in %s: %s", len(n.Collected.Left), n.Host, formatMiB(n.LeftBytes()), n.Directory, n.Collected.Reason)
}

// leftOnNodes says whether the run's manifest names captures that are still on nodes.
func leftOnNodes(dir *rundir.Dir) bool {
	m, err := dir.ReadManifest()
	if err != nil {
		return false
	}
	for i := range m.Run.Nodes {
		if m.Run.Nodes[i].Left() {
			return true
		}
	}
	return false
}

// writerOf writes a text.
func writerOf(text []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	}
}
