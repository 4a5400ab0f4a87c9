package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"sync"
	"sync/atomic"
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
	show(times, failed, end.Sub(begin).Seconds())
	check(producer.GracefulStop())
}

// show prints the figures of calls that took these times (ms) as one line of JSON.
func show(times []float64, failed int, seconds float64) {
	sort.Float64s(times)
	at := func(part float64) float64 { return times[int(part*float64(len(times)-1))] }
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"sent": len(times), "failed": failed, "rate": float64(len(times)) / seconds,
		"p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1),
	}))
}

// fill sends so many messages with so many goroutines.
func fill(count, threads int) {
	producer := started(rocketmq.NewProducer(configuration(), rocketmq.WithTopics(options["topic"])))
	body := make([]byte, number("size", 1024))
	var group sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(count))
	for range threads {
		group.Add(1)
		go func() {
			defer group.Done()
			for left.Add(-1) >= 0 {
				message := &rocketmq.Message{Topic: options["topic"], Body: body}
				for _, err := producer.Send(context.Background(), message); err != nil; {
					_, err = producer.Send(context.Background(), message)
				}
			}
		}()
	}
	group.Wait()
	check(producer.GracefulStop())
}

// drain receives and acknowledges count messages with so many goroutines, each a receive and its acknowledgements one
// after the other. The messages are sent before, when the group has its place in the topic. It prints as load does.
func drain() {
	rocketmq.EnableSsl = options["tls"] == "true"
	consumer, err := rocketmq.NewSimpleConsumer(configuration(), rocketmq.WithSimpleAwaitDuration(pollWait),
		rocketmq.WithSimpleSubscriptionExpressions(subscription()))
	check(err)
	check(consumer.Start())
	invisible := time.Duration(number("invisibleS", 60)) * time.Second
	_, _ = consumer.Receive(context.Background(), 1, invisible)
	count, threads := number("count", 20000), number("threads", 32)
	fill(count, 500)
	var left, failed atomic.Int64
	left.Store(int64(count))
	var lock sync.Mutex
	var times []float64
	fmt.Println("WARM")
	begin := time.Now()
	for range threads {
		go func() {
			for left.Load() > 0 && time.Since(begin) < limit {
				messages, _ := consumer.Receive(context.Background(), 32, invisible)
				for _, message := range messages {
					from := time.Now()
					if consumer.Ack(context.Background(), message) != nil {
						failed.Add(1)
						continue
					}
					lock.Lock()
					times = append(times, time.Since(from).Seconds()*1000)
					lock.Unlock()
					left.Add(-1)
				}
			}
		}()
	}
	for left.Load() > 0 && time.Since(begin) < limit {
		time.Sleep(time.Millisecond)
	}
	seconds := time.Since(begin).Seconds()
	fmt.Println("END")
	lock.Lock()
	show(times, int(failed.Load()), seconds)
	lock.Unlock()
	check(consumer.GracefulStop())
}
