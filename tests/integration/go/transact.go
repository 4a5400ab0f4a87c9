package main

import (
	"context"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const kinds = 6

// transactions ends each by its number, as tests/integration/java/src/Transact.java does.
type transactions struct {
	out  *report
	lock sync.Mutex
	// How often each that ran here was asked about.
	asked  map[int]int
	failed map[int]bool
}

func number(message *primitive.Message) int {
	n, err := strconv.Atoi(message.GetProperty("number"))
	check(err)
	return n
}

func (t *transactions) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	n := number(message)
	t.lock.Lock()
	t.asked[n] = 0
	t.lock.Unlock()
	t.out.line(map[string]any{"event": "executing", "number": n})
	switch n % kinds {
	case 0:
		return primitive.CommitMessageState
	case 1:
		return primitive.RollbackMessageState
	default:
		return primitive.UnknowState
	}
}

func (t *transactions) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	n := number(&message.Message)
	t.lock.Lock()
	_, ran := t.asked[n]
	if ran {
		t.asked[n]++
	}
	times, failed := t.asked[n], t.failed[n]
	t.lock.Unlock()
	t.out.line(map[string]any{"event": "checked", "number": n, "topic": message.Topic, "id": message.TransactionId})
	switch {
	case failed || ran && (n%kinds == 1 || n%kinds == 3):
		return primitive.RollbackMessageState
	case !ran || n%kinds == 4 && times < 2:
		return primitive.UnknowState
	default:
		return primitive.CommitMessageState
	}
}

func transact(o options, out *report) {
	listener := &transactions{out: out, asked: map[int]int{}, failed: map[int]bool{}}
	client, err := rocketmq.NewTransactionProducer(listener,
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{o.namesrv})),
		producer.WithGroupName(o.group),
		producer.WithRetry(0),
	)
	check(err)
	check(client.Start())
	for i := 0; i < o.sync; i++ {
		result, err := client.SendMessageInTransaction(context.Background(), sample(o.topic, "transaction", i))
		if err != nil {
			listener.lock.Lock()
			listener.failed[i] = true
			listener.lock.Unlock()
			out.line(map[string]any{"event": "failed", "number": i, "error": err.Error()})
			continue
		}
		out.line(map[string]any{"event": "prepared", "number": i, "status": int(result.Status), "id": result.TransactionID})
	}
	out.line(map[string]any{"event": "sent"})
	for {
		if _, err := os.Stat(o.end); err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	check(client.Shutdown())
}
