package spread

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

const parts = 40

// open makes a pool with parts of one kind.
func open(t *testing.T, quiet time.Duration) (*Pool, string) {
	t.Helper()
	dir := t.TempDir()
	p, err := listen(dir, "the run", hclog.NewNullLogger(), quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	if err := p.Start("count", parts, 100); err != nil {
		t.Fatal(err)
	}
	return p, dir
}

// count makes a file and says the part's number more than what all have in common.
func count(_ context.Context, u *Unit, path string) (any, error) {
	var base int
	if err := Decode(u.About, &base); err != nil {
		return nil, err
	}
	return base + u.Part, os.WriteFile(path, fmt.Append(nil, u.Part), 0o600)
}

// join starts a worker with so many connections.
func join(t *testing.T, dir string, connections int, do Do) chan error {
	t.Helper()
	var about string
	w, err := Find(dir, &about)
	if err != nil || about != "the run" {
		t.Fatalf("%q, %v", about, err)
	}
	w.beat = 50 * time.Millisecond
	ended := make(chan error, 1)
	kinds := make([][]string, connections)
	for i := range kinds {
		kinds[i] = []string{"count"}
	}
	go func() { ended <- w.Work(context.Background(), kinds, do) }()
	return ended
}

// take waits for all parts and returns how many are left to the caller.
func take(t *testing.T, p *Pool) (here int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := range parts {
		var said int
		path, err := p.Wait(ctx, "count", i, &said)
		if err != nil {
			t.Fatalf("part %d: %v", i, err)
		}
		if path == "" {
			here++
			continue
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != fmt.Sprint(i) || said != 100+i {
			t.Errorf("part %d: %q, %d, %v", i, text, said, err)
		}
	}
	return here
}

// Every part is done, by whichever worker, and workers end with their coordinator.
func TestPartsAreDoneByWorkers(t *testing.T) {
	p, dir := open(t, silence)
	one, two := join(t, dir, 1, count), join(t, dir, 3, count)
	if here := take(t, p); here > 0 {
		t.Errorf("%d parts are left", here)
	}
	p.Close()
	for _, ended := range []chan error{one, two} {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// A node that begins when the others have done everything is told so, wherever it had come to.
func TestWorkersThatComeTooLate(t *testing.T) {
	p, dir := open(t, silence)
	ended := join(t, dir, 1, count)
	take(t, p)
	var about string
	w, err := Find(dir, &about)
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := w.Work(context.Background(), [][]string{{"count"}, {"count"}}, count); !errors.Is(err, ErrOver) {
		t.Errorf("with nobody there it ended with %v", err)
	}
	if _, err := Find(dir, &about); !errors.Is(err, ErrOver) {
		t.Errorf("without a coordinator's file it ended with %v", err)
	}
}

// What a worker fails at is tried again, a few times, and then left to the coordinator.
func TestPartsThatFail(t *testing.T) {
	p, dir := open(t, silence)
	var tried atomic.Int64
	join(t, dir, 2, func(ctx context.Context, u *Unit, path string) (any, error) {
		if u.Part == 7 || u.Part == 8 && u.Attempt == 1 {
			tried.Add(1)
			return nil, errors.New("no room")
		}
		return count(ctx, u, path)
	})
	if here := take(t, p); here != 1 || tried.Load() != attempts+1 {
		t.Errorf("%d parts are left after %d failures", here, tried.Load())
	}
}

// A worker that falls silent, and one whose connection ends, have their units done by others, or by the coordinator where nobody is left.
func TestWorkersThatAreLost(t *testing.T) {
	for name, lose := range map[string]func(c net.Conn){"silent": func(net.Conn) {}, "gone": func(c net.Conn) { c.Close() }} {
		for _, others := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " others ", others), func(t *testing.T) {
				t.Parallel()
				quiet := silence
				if name == "silent" {
					quiet = 5 * time.Second // so long the worker that lives may be without a processor
				}
				p, dir := open(t, quiet)
				c, err := net.Dial("tcp", p.listen.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				var u Unit
				if err := send(c, hello{p.token, "lost", []string{"count"}}); err != nil {
					t.Fatal(err)
				}
				if err := receive(c, &u, maxMessage); err != nil {
					t.Fatal(err)
				}
				lose(c)
				want := parts
				if others {
					ended := join(t, dir, 1, count)
					for joined := false; !joined; time.Sleep(time.Millisecond) {
						select {
						case err := <-ended:
							t.Fatalf("the worker that lives has ended: %v", err)
						default:
						}
						p.mu.Lock()
						joined = p.finished["lost"] == 0 && len(p.finished) > 0
						p.mu.Unlock()
					}
					want = 0
				}
				p.Alone()
				if here := take(t, p); here != want {
					t.Errorf("%d parts are left, want %d", here, want)
				}
			})
		}
	}
}

// Whoever does not know the token gets nothing.
func TestStrangersGetNothing(t *testing.T) {
	p, _ := open(t, silence)
	for _, token := range []string{"", "x", p.token + "x"} {
		c, err := net.Dial("tcp", p.listen.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		var u Unit
		if err := send(c, hello{token, "stranger", []string{"count"}}); err != nil {
			t.Fatal(err)
		}
		if err := receive(c, &u, maxMessage); err == nil {
			t.Errorf("token %q: unit %v", token, u)
		}
		c.Close()
	}
	c, err := net.Dial("tcp", p.listen.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Write([]byte{0xff, 0xff, 0xff, 0xff})
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes for a message that is too long", n)
	}
}
