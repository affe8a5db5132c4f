package capture_test

import (
	"fmt"
	"log"
	"os"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/capture/capturetest"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// Adds up what a process put.
func ExampleDecoder() {
	dir, err := os.MkdirTemp("", "capture")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	h := capture.Header{Pid: 1, Hostname: "node"}
	w, err := capturetest.Create(dir, h, catalogue.Default)
	if err != nil {
		log.Fatal(err)
	}
	t := w.Thread()
	for i := range uint64(10) {
		put := make([]uint64, 11)
		put[catalogue.UcpRequestBytes] = 4096
		t.Event(1000+i, catalogue.EventUcpPut, put)
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}

	f, err := capture.Open(capturetest.Path(dir, h))
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	var d capture.Decoder
	var ev capture.Event
	total := uint64(0)
	for i := range f.Chunks() {
		d.Reset(f, &f.Chunks()[i], catalogue.Default)
		for {
			ok, err := d.Next(&ev)
			if err != nil {
				log.Print(err) // what came before it is good; other chunks are not touched
			}
			if !ok {
				break
			}
			if ev.ID == catalogue.EventUcpPut {
				total += ev.Fields[catalogue.UcpRequestBytes]
			}
		}
	}
	fmt.Println(total)
	// Output: 40960
}
