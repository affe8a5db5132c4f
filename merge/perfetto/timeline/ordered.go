package timeline

import (
	"bytes"
	"context"
	"io"

	"golang.org/x/sync/errgroup"
)

// ahead is how many bytes a part may write before its turn.
const ahead = 8 << 20

// Ordered calls encode for 0 <= i < n, workers of them at a time. What they write reaches out in order of i: the part whose turn it
// is writes through, those after it up to a fixed amount into memory.
func Ordered(ctx context.Context, out io.Writer, workers, n int, encode func(ctx context.Context, i int, w io.Writer) error) error {
	g, ctx := errgroup.WithContext(ctx)
	encoding, waiting := make(chan struct{}, workers), make(chan struct{}, 2*workers)
	turn := make(chan struct{})
	close(turn)
	for i := range n {
		select {
		case waiting <- struct{}{}:
		case <-ctx.Done():
			return failure(g.Wait(), ctx)
		}
		select {
		case encoding <- struct{}{}:
		case <-ctx.Done():
			return failure(g.Wait(), ctx)
		}
		p := &part{ctx: ctx, out: out, turn: turn}
		next := make(chan struct{})
		turn = next
		g.Go(func() error {
			err := encode(ctx, i, p)
			<-encoding
			if err == nil {
				err = p.flush()
			}
			if err != nil {
				return err
			}
			<-waiting
			close(next)
			return nil
		})
	}
	return g.Wait()
}

// failure is what ended the parts, or the caller's own cancellation.
func failure(err error, ctx context.Context) error {
	if err != nil {
		return err
	}
	return context.Cause(ctx)
}

type part struct {
	ctx  context.Context
	out  io.Writer
	turn <-chan struct{} // closed when all parts before have been written
	mine bool
	buf  bytes.Buffer
}

func (p *part) Write(b []byte) (int, error) {
	if !p.mine {
		select {
		case <-p.turn:
			if err := p.flush(); err != nil {
				return 0, err
			}
		default:
			if p.buf.Len()+len(b) <= ahead {
				return p.buf.Write(b)
			}
			if err := p.flush(); err != nil {
				return 0, err
			}
		}
	}
	return p.out.Write(b)
}

// flush waits for the part's turn and writes what was kept back.
func (p *part) flush() error {
	if p.mine {
		return nil
	}
	select {
	case <-p.turn:
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
	p.mine = true
	_, err := p.buf.WriteTo(p.out)
	p.buf = bytes.Buffer{}
	return err
}
