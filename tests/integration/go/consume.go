package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// consume returns when count messages are there and none came for quietMs, or after limitMs.
func consume(o options, out *report) {
	client, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{o.namesrv})),
		consumer.WithGroupName(o.group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithCredentials(o.credentials()),
	)
	check(err)
	var count, last atomic.Int64
	last.Store(time.Now().UnixMilli())
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: o.expression}
	check(client.Subscribe(o.topic, selector,
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				record(out, message)
				count.Add(1)
				last.Store(time.Now().UnixMilli())
			}
			return consumer.ConsumeSuccess, nil
		}))
	check(client.Start())
	end := time.Now().UnixMilli() + int64(o.limitMs)
	for now := time.Now().UnixMilli(); now < end; now = time.Now().UnixMilli() {
		if count.Load() >= int64(o.count) && now-last.Load() >= int64(o.quietMs) {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	check(client.Shutdown())
}

func record(out *report, message *primitive.MessageExt) {
	out.line(map[string]any{
		"queue": message.Queue.QueueId, "offset": message.QueueOffset, "body": string(message.Body),
		"keys": message.GetKeys(), "tags": message.GetTags(),
		"number": message.GetProperty("number"), "word": message.GetProperty("word"),
		"reconsume_times": message.ReconsumeTimes, "topic": message.Topic,
	})
}
