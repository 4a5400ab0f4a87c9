package main

import (
	"context"
	"os"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// warmUp asks till there is a reply: this client's first heartbeat may come long after its first request, and no broker
// can bring a reply to a client that it does not know.
func warmUp(client rocketmq.Producer, topic string) {
	for i := 0; i < 30; i++ {
		reply, err := client.Request(context.Background(), 2*time.Second, sample(topic, "warm", i))
		if err == nil && reply != nil {
			return
		}
	}
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// ask sends count requests, by turns waiting for the reply and being called back with it.
func ask(o options, out *report) {
	client, err := rocketmq.NewProducer(
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{o.namesrv})),
		producer.WithGroupName(o.group),
		producer.WithRetry(0),
	)
	check(err)
	check(client.Start())
	warmUp(client, o.topic)
	timeout := time.Duration(o.timeoutMs) * time.Millisecond
	for i := 0; i < o.count && !isThere(o.stop); i++ {
		message := sample(o.topic, "request", i)
		var reply *primitive.Message
		var err error
		if i%2 == 0 {
			reply, err = client.Request(context.Background(), timeout, message)
		} else {
			reply, err = requestAsync(client, timeout, message)
		}
		if err != nil || reply == nil {
			out.line(map[string]any{"number": i, "status": "ERROR"})
		} else {
			out.line(map[string]any{"number": i, "status": "OK", "reply": string(reply.Body), "topic": reply.Topic})
		}
		time.Sleep(time.Duration(o.pauseMs) * time.Millisecond)
	}
	check(client.Shutdown())
}

func requestAsync(client rocketmq.Producer, timeout time.Duration, message *primitive.Message) (*primitive.Message, error) {
	type result struct {
		reply *primitive.Message
		err   error
	}
	done := make(chan result, 1)
	callback := func(_ context.Context, reply *primitive.Message, err error) {
		done <- result{reply, err}
	}
	if err := client.RequestAsync(context.Background(), timeout, callback, message); err != nil {
		return nil, err
	}
	select {
	case got := <-done:
		return got.reply, got.err
	case <-time.After(timeout + time.Second):
		return nil, nil
	}
}

// answer replies to every request till the file stop is there.
func answer(o options, out *report) {
	replier, err := rocketmq.NewProducer(
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{o.namesrv})),
		producer.WithGroupName(o.group+"Repliers"),
	)
	check(err)
	check(replier.Start())
	client, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{o.namesrv})),
		consumer.WithGroupName(o.group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	check(err)
	check(client.Subscribe(o.topic, consumer.MessageSelector{},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				answerOne(replier, message, out)
			}
			return consumer.ConsumeSuccess, nil
		}))
	check(client.Start())
	out.line(map[string]any{"event": "started"})
	for !isThere(o.stop) {
		time.Sleep(20 * time.Millisecond)
	}
	check(client.Shutdown())
	check(replier.Shutdown())
}

func answerOne(replier rocketmq.Producer, message *primitive.MessageExt, out *report) {
	body := string(message.Body)
	reply, err := consumer.CreateReplyMessage(message, nil)
	check(err)
	reply.Body = []byte("re: " + body) // this version takes what it is given for properties
	if _, err := replier.SendSync(context.Background(), reply); err != nil {
		out.line(map[string]any{"event": "failed", "body": body, "error": err.Error()})
		return
	}
	out.line(map[string]any{"event": "replied", "body": body})
}
