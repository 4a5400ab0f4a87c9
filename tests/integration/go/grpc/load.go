package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

// load sends for warmup and seconds with so many goroutines, each one message after the other. It prints WARM and END
// around what counts, and then the figures as one line of JSON.
func load() {
	rocketmq.EnableSsl = options["tls"] == "true"
	producer := started(rocketmq.NewProducer(configuration(), rocketmq.WithTopics(options["topic"])))
	body := make([]byte, number("size", 1024))
	begin := time.Now().Add(time.Duration(number("warmup", 3)) * time.Second)
	end := begin.Add(time.Duration(number("seconds", 8)) * time.Second)
	var group sync.WaitGroup
	counts := make([][]float64, number("threads", 64))
	failures := make([]int, len(counts))
	for thread := range counts {
		group.Add(1)
		go func() {
			defer group.Done()
			for {
				message := &rocketmq.Message{Topic: options["topic"], Body: body}
				from := time.Now()
				_, err := producer.Send(context.Background(), message)
				to := time.Now()
				if from.After(end) {
					return
				}
				if from.Before(begin) || to.After(end) {
					continue
				}
				if err != nil {
					failures[thread]++
				} else {
					counts[thread] = append(counts[thread], to.Sub(from).Seconds()*1000)
				}
			}
		}()
	}
	time.Sleep(time.Until(begin))
	fmt.Println("WARM")
	time.Sleep(time.Until(end))
	fmt.Println("END")
	group.Wait()
	var times []float64
	failed := 0
	for thread, found := range counts {
		times = append(times, found...)
		failed += failures[thread]
	}
	sort.Float64s(times)
	at := func(part float64) float64 { return times[int(part*float64(len(times)-1))] }
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"sent": len(times), "failed": failed, "rate": float64(len(times)) / end.Sub(begin).Seconds(),
		"p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1),
	}))
	check(producer.GracefulStop())
}
