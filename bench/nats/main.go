// Command nats loads a JetStream stream of three replicas in files. It prints WARM and END around what counts, and one
// JSON line.
//
//	nats -servers URL,URL -stream NAME (-threads N | -in-flight N) -size BYTES -seconds S -warmup S
//
// Threads wait for each answer; with -in-flight one goroutine publishes and another takes the answers in order.
// What was acknowledged in all is compared with what the stream holds afterwards.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

var (
	servers  = flag.String("servers", "nats://127.0.0.1:4222", "comma-separated URLs")
	stream   = flag.String("stream", "BENCH", "stream, and its one subject")
	threads  = flag.Int("threads", 0, "goroutines that wait for each answer")
	inFlight = flag.Int("in-flight", 0, "publishes without an answer yet")
	size     = flag.Int("size", 1024, "bytes of a body")
	seconds  = flag.Float64("seconds", 8, "measured after the warm-up")
	warmup   = flag.Float64("warmup", 3, "seconds")
)

// tally holds what one goroutine has seen.
type tally struct {
	latencies    []time.Duration
	acknowledged int
	errors       map[string]int
}

func (t *tally) took(started, now, warm, end time.Time, err error) {
	if err != nil {
		t.errors[err.Error()]++
		return
	}
	t.acknowledged++
	if !started.Before(warm) && !now.After(end) {
		t.latencies = append(t.latencies, now.Sub(started))
	}
}

func newTally() *tally { return &tally{errors: map[string]int{}} }

func duration(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run() error {
	connection, err := nats.Connect(*servers)
	if err != nil {
		return err
	}
	defer connection.Close()
	js, err := connection.JetStream(nats.PublishAsyncMaxPending(*inFlight + 16))
	if err != nil {
		return err
	}
	if err := makeStream(js); err != nil {
		return err
	}
	warm := time.Now().Add(duration(*warmup))
	end := warm.Add(duration(*seconds))
	time.AfterFunc(time.Until(warm), func() { fmt.Println("WARM") })
	time.AfterFunc(time.Until(end), func() { fmt.Println("END") })
	var tallies []*tally
	if *threads > 0 {
		tallies = publishSync(js, warm, end)
	} else {
		tallies = publishAsync(js, warm, end)
	}
	return report(js, tallies)
}

// makeStream tries until the cluster has a leader for its metadata.
func makeStream(js nats.JetStreamContext) error {
	config := &nats.StreamConfig{Name: *stream, Subjects: []string{*stream}, Replicas: 3, Storage: nats.FileStorage}
	var err error
	for range 100 {
		if _, err = js.AddStream(config); err == nil {
			_, err = js.Publish(*stream, []byte("first"))
		}
		if err == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

func publishSync(js nats.JetStreamContext, warm, end time.Time) []*tally {
	body := make([]byte, *size)
	tallies := make([]*tally, *threads)
	var running sync.WaitGroup
	for i := range tallies {
		tallies[i] = newTally()
		running.Add(1)
		go func(own *tally) {
			defer running.Done()
			for started := time.Now(); started.Before(end); started = time.Now() {
				_, err := js.Publish(*stream, body)
				own.took(started, time.Now(), warm, end, err)
			}
		}(tallies[i])
	}
	running.Wait()
	return tallies
}

type sent struct {
	future  nats.PubAckFuture
	started time.Time
}

func publishAsync(js nats.JetStreamContext, warm, end time.Time) []*tally {
	body := make([]byte, *size)
	waiting := make(chan sent, *inFlight)
	refused, own := newTally(), newTally()
	go func() {
		defer close(waiting)
		for started := time.Now(); started.Before(end); started = time.Now() {
			future, err := js.PublishAsync(*stream, body)
			if err != nil {
				refused.took(started, started, warm, end, err)
				continue
			}
			waiting <- sent{future, started}
		}
	}()
	for one := range waiting {
		select {
		case <-one.future.Ok():
			own.took(one.started, time.Now(), warm, end, nil)
		case err := <-one.future.Err():
			own.took(one.started, time.Now(), warm, end, err)
		}
	}
	return []*tally{refused, own}
}

func report(js nats.JetStreamContext, tallies []*tally) error {
	all := newTally()
	all.acknowledged = 1 // the first message, which showed that the stream takes messages
	for _, one := range tallies {
		all.latencies = append(all.latencies, one.latencies...)
		all.acknowledged += one.acknowledged
		for text, count := range one.errors {
			all.errors[text] += count
		}
	}
	info, err := js.StreamInfo(*stream)
	if err != nil {
		return err
	}
	slices.Sort(all.latencies)
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"messages":     len(all.latencies),
		"per_second":   float64(len(all.latencies)) / *seconds,
		"p50_ms":       percentile(all.latencies, 0.5),
		"p99_ms":       percentile(all.latencies, 0.99),
		"p999_ms":      percentile(all.latencies, 0.999),
		"max_ms":       percentile(all.latencies, 1),
		"acknowledged": all.acknowledged,
		"stored":       info.State.Msgs,
		"errors":       all.errors,
	})
}

func percentile(ordered []time.Duration, share float64) any {
	if len(ordered) == 0 {
		return nil
	}
	rank := int(math.Ceil(share * float64(len(ordered))))
	return float64(ordered[max(rank, 1)-1].Microseconds()) / 1000
}
