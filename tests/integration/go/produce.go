package main

import (
	"context"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const batchSize = 10

func produce(o options, out *report) {
	client, err := rocketmq.NewProducer(
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{o.namesrv})),
		producer.WithGroupName(o.group),
		producer.WithRetry(2),
		producer.WithCredentials(o.credentials()),
	)
	check(err)
	check(client.Start())
	for i := 0; i < o.sync; i++ {
		sent(out, "sync", i, 0, send(client, sample(o.topic, "sync", i)))
	}
	for i := 0; i < o.oneway; i++ {
		check(client.SendOneWay(context.Background(), sample(o.topic, "oneway", i)))
		out.line(map[string]any{"kind": "oneway", "number": i})
	}
	for first := 0; first < o.batch; first += batchSize {
		var messages []*primitive.Message
		for i := first; i < min(first+batchSize, o.batch); i++ {
			messages = append(messages, sample(o.topic, "batch", i))
		}
		result := send(client, messages...)
		for i := range messages {
			sent(out, "batch", first+i, int64(i), result)
		}
	}
	check(client.Shutdown())
}

func send(client rocketmq.Producer, messages ...*primitive.Message) *primitive.SendResult {
	result, err := client.SendSync(context.Background(), messages...)
	check(err)
	return result
}

func sent(out *report, kind string, number int, after int64, result *primitive.SendResult) {
	out.line(map[string]any{
		"kind": kind, "number": number, "status": int(result.Status),
		"queue": result.MessageQueue.QueueId, "offset": result.QueueOffset + after,
	})
}
