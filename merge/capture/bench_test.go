package capture_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/capture/capturetest"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

func fieldsOf(event string) []uint64 {
	return make([]uint64, len(catalogue.Default.EventNamed(event).Layout.Fields))
}

// verbsStream is one thread of a bandwidth test in full mode: bursts of RDMA writes on one queue pair with every fourth signalled,
// a run of empty polls, a completion.
func verbsStream(t *capturetest.Thread, r *rand.Rand, n int) {
	time, written := uint64(1e12), uint64(0)
	write, done, polls := fieldsOf("verbs_write"), fieldsOf("verbs_completion"), fieldsOf("verbs_empty_polls")
	write[catalogue.VerbsRequestQueuePair] = 5
	write[catalogue.VerbsRequestBytes] = 4096
	write[catalogue.VerbsRequestSges] = 1
	write[catalogue.VerbsRequestLocalKey] = 0x1234
	write[catalogue.VerbsRequestRemoteKey] = 0xabcdef
	done[catalogue.VerbsCompletionQueuePair] = 5
	done[catalogue.VerbsCompletionCompletionQueue] = 2
	polls[catalogue.VerbsEmptyPollsCompletionQueue] = 2
	for ; n > 0; n -= 6 {
		for i := range 4 {
			time += 300 + uint64(r.IntN(400))
			write[catalogue.VerbsRequestWrId] = written
			write[catalogue.VerbsRequestFlags] = catalogue.VerbsSendFlagsSignaled * uint64(i/3)
			write[catalogue.VerbsRequestLocalAddress] = 0x7f0000000000 + written%128*4096
			write[catalogue.VerbsRequestRemoteAddress] = 0x7e0000000000 + written%128*4096
			written++
			t.Event(time, catalogue.EventVerbsWrite, write)
		}
		time += 500
		polls[catalogue.VerbsEmptyPollsCount], polls[catalogue.VerbsEmptyPollsDuration] = uint64(1+r.IntN(5)), uint64(r.IntN(3000))
		t.Event(time, catalogue.EventVerbsEmptyPolls, polls)
		time += polls[catalogue.VerbsEmptyPollsDuration]
		done[catalogue.VerbsCompletionWrId] = written - 1
		t.Event(time, catalogue.EventVerbsCompletion, done)
	}
}

// ucpStream is one rank of an all-to-all over UCP in full mode: to each of 8 peers a tag send and a receive, messages of three sizes,
// every request completed later.
func ucpStream(t *capturetest.Thread, r *rand.Rand, n int) {
	time := uint64(1e12)
	send, receive, done := fieldsOf("ucp_tag_send"), fieldsOf("ucp_tag_recv"), fieldsOf("ucp_completion")
	for round := uint64(0); n > 0; round++ {
		size := uint64(64) << (4 * (round / 100 % 3))
		for peer := range uint64(8) {
			time += 200 + uint64(r.IntN(900))
			receive[catalogue.UcpRequestEndpoint] = 1
			receive[catalogue.UcpRequestBytes] = size
			receive[catalogue.UcpRequestTag], receive[catalogue.UcpRequestMask] = round<<8|peer, 0xffffffffffff
			receive[catalogue.UcpRequestLocalAddress] = 0x550000000000 + peer*size
			receive[catalogue.UcpRequestRequest], receive[catalogue.UcpRequestStatus] = 2*peer+1, catalogue.UcpResultPending
			receive[catalogue.UcpRequestDuration] = 200 + uint64(r.IntN(200))
			t.Event(time, catalogue.EventUcpTagRecv, receive)
			time += 200 + uint64(r.IntN(900))
			send[catalogue.UcpRequestEndpoint] = 2 + peer
			send[catalogue.UcpRequestBytes] = size
			send[catalogue.UcpRequestTag] = round<<8 | 3
			send[catalogue.UcpRequestLocalAddress] = 0x560000000000 + peer*size
			send[catalogue.UcpRequestRequest], send[catalogue.UcpRequestStatus] = 2*peer+2, catalogue.UcpResultPending
			send[catalogue.UcpRequestDuration] = 400 + uint64(r.IntN(600))
			t.Event(time, catalogue.EventUcpTagSend, send)
		}
		for peer := range uint64(8) {
			time += 100 + uint64(r.IntN(3000))
			done[catalogue.UcpCompletionEndpoint], done[catalogue.UcpCompletionRequest] = 1, 2*peer+1
			done[catalogue.UcpCompletionBytes], done[catalogue.UcpCompletionTag] = size, round<<8|peer
			t.Event(time, catalogue.EventUcpCompletion, done)
			time += 100 + uint64(r.IntN(300))
			done[catalogue.UcpCompletionEndpoint], done[catalogue.UcpCompletionRequest] = 2+peer, 2*peer+2
			done[catalogue.UcpCompletionBytes], done[catalogue.UcpCompletionTag] = 0, 0
			t.Event(time, catalogue.EventUcpCompletion, done)
		}
		n -= 32
	}
}

func benchmarkDecode(b *testing.B, stream func(*capturetest.Thread, *rand.Rand, int)) {
	var m capturetest.Memory
	w := capturetest.New(&m, capture.Header{}, catalogue.Default)
	stream(w.Thread(), rand.New(rand.NewPCG(1, 2)), 500_000)
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	f, err := capture.New("bench", bytes.NewReader(m), int64(len(m)))
	if err != nil {
		b.Fatal(err)
	}
	var d capture.Decoder
	var ev capture.Event
	var sum uint64
	events := 0
	decode := func() {
		for i := range f.Chunks() {
			d.Reset(f, &f.Chunks()[i], catalogue.Default)
			for {
				ok, err := d.Next(&ev)
				if err != nil {
					b.Fatal(err)
				}
				if !ok {
					break
				}
				sum += ev.Fields[1]
				events++
			}
		}
	}
	decode()
	payload := 0
	for _, ch := range f.Chunks() {
		payload += int(ch.Committed) + 64
	}
	size := float64(payload) / float64(events)
	events = 0
	b.ReportAllocs()
	for b.Loop() {
		decode()
	}
	b.ReportMetric(float64(events)/b.Elapsed().Seconds()/1e6, "Mev/s")
	b.ReportMetric(size, "B/event")
	_ = sum
}

func BenchmarkDecodeVerbs(b *testing.B) { benchmarkDecode(b, verbsStream) }
func BenchmarkDecodeUcp(b *testing.B)   { benchmarkDecode(b, ucpStream) }

func TestDecodingAllocatesNothing(t *testing.T) {
	var m capturetest.Memory
	w := capturetest.New(&m, capture.Header{}, catalogue.Default)
	ucpStream(w.Thread(), rand.New(rand.NewPCG(1, 2)), 50_000)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f := open(t, m)
	if len(f.Chunks()) < 3 {
		t.Fatalf("%d chunks: too few to tell", len(f.Chunks()))
	}
	var d capture.Decoder
	allocations := testing.AllocsPerRun(10, func() {
		for i := range f.Chunks() {
			if _, err := d.Measure(f, &f.Chunks()[i], catalogue.Default); err != nil {
				t.Fatal(err)
			}
		}
	})
	if allocations != 0 {
		t.Errorf("%v allocations over %d chunks", allocations, len(f.Chunks()))
	}
}
