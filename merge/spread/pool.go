package spread

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Pool is the coordinator's side.
type Pool struct {
	dir    string
	quiet  time.Duration // that a worker may be
	token  string
	log    hclog.Logger
	listen net.Listener

	mu       sync.Mutex
	changed  *sync.Cond
	queue    []*task
	tasks    map[key]*task
	about    map[string][]byte
	workers  map[net.Conn]bool
	alone    bool
	finished map[string]int // units by the host that did them
}

type key struct {
	kind string
	part int
}

type task struct {
	key
	attempt int
	tries   int
	ended   bool
	file    string // "" where it has to be done here
	said    []byte
}

// Listen makes a pool that workers find through dir, which only the user may read. about is what they are told.
func Listen(dir string, about any, log hclog.Logger) (*Pool, error) {
	return listen(dir, about, log, silence)
}

func listen(dir string, about any, log hclog.Logger, quiet time.Duration) (*Pool, error) {
	said, err := Encode(about)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return nil, fmt.Errorf("listening for workers: %w", err)
	}
	p := &Pool{dir: dir, quiet: quiet, token: rand.Text(), log: log, listen: l, tasks: map[key]*task{}, about: map[string][]byte{}, workers: map[net.Conn]bool{}, finished: map[string]int{}}
	p.changed = sync.NewCond(&p.mu)
	text, err := Encode(where{Addresses: addresses(l.Addr().(*net.TCPAddr).Port), Token: p.token, About: said})
	if err == nil {
		err = os.WriteFile(wherePath(dir), text, 0o600)
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("telling workers where to find this process: %w", err)
	}
	go p.accept()
	return p, nil
}

// addresses are those of this host, loopback last.
func addresses(port int) (list []string) {
	all, _ := net.InterfaceAddrs() // without any, workers on this host can still come
	var last []string
	for _, a := range all {
		ip, ok := a.(*net.IPNet)
		if !ok || ip.IP.IsLinkLocalUnicast() {
			continue
		}
		text := (&net.TCPAddr{IP: ip.IP, Port: port}).String()
		if ip.IP.IsLoopback() {
			last = append(last, text)
		} else {
			list = append(list, text)
		}
	}
	return append(list, last...)
}

// Start gives out the parts of a kind of work, from 0 on.
func (p *Pool) Start(kind string, parts int, about any) error {
	said, err := Encode(about)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.about[kind] = said
	for i := range parts {
		t := &task{key: key{kind, i}}
		p.tasks[t.key] = t
		if p.alone {
			t.ended = true
		} else {
			p.queue = append(p.queue, t)
		}
	}
	p.changed.Broadcast()
	return nil
}

// Wait waits until a part is done, and returns the file that it made and what was said of it, decoded into said. The name is "" where the part
// has to be done by the caller.
func (p *Pool) Wait(ctx context.Context, kind string, part int, said any) (string, error) {
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.changed.Broadcast()
	})
	defer stop()
	p.mu.Lock()
	t := p.tasks[key{kind, part}]
	for t != nil && !t.ended && ctx.Err() == nil {
		p.changed.Wait()
	}
	p.mu.Unlock()
	if t == nil || ctx.Err() != nil {
		return "", ctx.Err()
	}
	if t.file == "" {
		return "", nil
	}
	if err := Decode(t.said, said); err != nil {
		return "", err
	}
	t.said = nil
	return filepath.Join(p.dir, t.file), nil
}

// Alone says that no workers will come any more: what those that are there do not do is left to the callers of Wait.
func (p *Pool) Alone() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.alone = true
	p.surrender()
	p.changed.Broadcast()
}

// surrender ends what is queued where nobody is there to do it.
func (p *Pool) surrender() {
	if !p.alone || len(p.workers) > 0 {
		return
	}
	for _, t := range p.queue {
		t.ended = true
	}
	p.queue = nil
}

// Close sends the workers away.
func (p *Pool) Close() {
	os.Remove(wherePath(p.dir)) // first: who comes later is to see why nobody listens
	p.listen.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.workers {
		c.Close()
	}
}

// Finished tells how many units each host did.
func (p *Pool) Finished() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[string]int{}
	for host, n := range p.finished {
		all[host] = n
	}
	return all
}

func (p *Pool) accept() {
	for {
		c, err := p.listen.Accept()
		if err != nil {
			return // closed
		}
		go p.serve(c)
	}
}

// maxHello bounds what is read of somebody who has not shown the token.
const maxHello = 4096

func (p *Pool) serve(c net.Conn) {
	defer c.Close()
	var h hello
	c.SetDeadline(time.Now().Add(p.quiet))
	if err := receive(c, &h, maxHello); err != nil || subtle.ConstantTimeCompare([]byte(h.Token), []byte(p.token)) != 1 {
		p.log.Warn("a connection that is no worker's was closed", "from", c.RemoteAddr())
		return
	}
	p.mu.Lock()
	p.workers[c] = true
	p.mu.Unlock()
	gone := make(chan struct{})
	answers := make(chan answer)
	go func() { // so that the end of a worker without a unit is seen as well
		defer close(gone)
		for {
			var a answer
			c.SetReadDeadline(time.Now().Add(p.quiet))
			if err := receive(c, &a, maxMessage); err != nil {
				return
			}
			if a.Ended {
				answers <- a
			}
		}
	}()
	defer func() {
		c.Close()
		p.leave(c)
		for {
			select {
			case <-answers:
			case <-gone:
				return
			}
		}
	}()
	for {
		t, u := p.next(c, h.Kinds, gone)
		if t == nil {
			return
		}
		c.SetWriteDeadline(time.Now().Add(p.quiet))
		if err := send(c, u); err != nil {
			p.again(t, h.Host, err.Error())
			return
		}
		select {
		case a := <-answers:
			if a.Error != "" {
				p.again(t, h.Host, a.Error)
				continue
			}
			p.done(t, h.Host, u.File(), a.Said)
		case <-gone:
			p.again(t, h.Host, "the worker is gone")
			return
		}
	}
}

// next is a unit for a worker, nil when the worker has gone.
func (p *Pool) next(c net.Conn, kinds []string, gone <-chan struct{}) (*task, *Unit) {
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-gone:
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.workers, c)
			p.surrender()
			p.changed.Broadcast()
		case <-stop:
		}
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.workers[c] {
		for i, t := range p.queue {
			if slices.Contains(kinds, t.kind) {
				p.queue = slices.Delete(p.queue, i, i+1)
				t.attempt++
				return t, &Unit{Kind: t.kind, Part: t.part, Attempt: t.attempt, About: p.about[t.kind]}
			}
		}
		p.changed.Wait()
	}
	return nil, nil
}

func (p *Pool) leave(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.workers, c)
	p.surrender()
	p.changed.Broadcast()
}

// again puts a unit back that a worker has not done, in front, or leaves it to the coordinator.
func (p *Pool) again(t *task, host, why string) {
	p.log.Warn("a unit of the merge is done again", "unit", t.kind, "part", t.part, "worker", host, "error", why)
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.tries++; t.tries < attempts {
		p.queue = slices.Insert(p.queue, 0, t)
	} else {
		t.ended = true
	}
	p.changed.Broadcast()
}

func (p *Pool) done(t *task, host, file string, said []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.ended, t.file, t.said = true, file, said
	p.finished[host]++
	p.changed.Broadcast()
}
