package spread

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Worker is the worker's side of a folder's coordinator.
type Worker struct {
	dir   string
	beat  time.Duration
	where where
}

// Find reads where the coordinator of a folder is, and what it says to all workers into about.
func Find(dir string, about any) (*Worker, error) {
	text, err := os.ReadFile(wherePath(dir))
	if errors.Is(err, os.ErrNotExist) { // it is there before any worker is started, and goes when the workers are sent away
		return nil, ErrOver
	}
	if err != nil {
		return nil, fmt.Errorf("looking for the coordinator: %w", err)
	}
	w := &Worker{dir: dir, beat: beat}
	if err := Decode(text, &w.where); err != nil {
		return nil, fmt.Errorf("looking for the coordinator: %w", err)
	}
	return w, Decode(w.where.About, about)
}

// Do is what a worker does of a unit: it makes the file at path and returns what is to be said of it.
type Do func(ctx context.Context, u *Unit, path string) (said any, err error)

// Work takes units until the coordinator goes. Each entry of kinds is a connection: the kinds of units that it takes, one at a time.
func (w *Worker) Work(ctx context.Context, kinds [][]string, do Do) error {
	var group sync.WaitGroup
	errs := make([]error, len(kinds))
	for i := range kinds {
		group.Go(func() { errs[i] = w.connection(ctx, kinds[i], do) })
	}
	group.Wait()
	return errors.Join(errs...)
}

func (w *Worker) connect(ctx context.Context) (net.Conn, error) {
	var errs []error
	addresses := w.where.Addresses
	if ip := os.Getenv("SLURM_LAUNCH_NODE_IPADDR"); ip != "" && len(addresses) > 0 { // Slurm has just used this one
		if _, port, err := net.SplitHostPort(addresses[0]); err == nil {
			addresses = append([]string{net.JoinHostPort(ip, port)}, addresses...)
		}
	}
	for _, a := range addresses {
		d := net.Dialer{Timeout: 5 * time.Second}
		c, err := d.DialContext(ctx, "tcp", a)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	if _, err := os.Stat(wherePath(w.dir)); errors.Is(err, os.ErrNotExist) {
		return nil, ErrOver
	}
	return nil, fmt.Errorf("reaching the coordinator: %w", errors.Join(errs...))
}

func (w *Worker) connection(ctx context.Context, kinds []string, do Do) error {
	c, err := w.connect(ctx)
	if err != nil {
		return err
	}
	caller := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	host, _ := os.Hostname() // it is for people
	var mu sync.Mutex        // of what is sent
	say := func(v any) error {
		mu.Lock()
		defer mu.Unlock()
		return send(c, v)
	}
	if err := say(hello{w.where.Token, host, kinds}); err != nil {
		return fmt.Errorf("speaking to the coordinator: %w", err)
	}
	go func() {
		for tick := time.NewTicker(w.beat); ; {
			select {
			case <-tick.C:
				if say(answer{}) != nil {
					cancel() // nobody waits for the unit any more
					return
				}
			case <-ctx.Done():
				tick.Stop()
				return
			}
		}
	}()
	for {
		var u Unit
		if err := receive(c, &u, maxMessage); err != nil {
			return caller.Err() // the coordinator has gone: there is no more to do
		}
		a := answer{Ended: true}
		said, err := do(ctx, &u, filepath.Join(w.dir, u.File()))
		if err == nil {
			a.Said, err = Encode(said)
		}
		if err != nil {
			a.Error = err.Error()
			os.RemoveAll(filepath.Join(w.dir, u.File()))
		}
		if say(a) != nil {
			return caller.Err()
		}
	}
}
