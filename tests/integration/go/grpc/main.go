// Drives RocketMQ's Go client for gRPC: the actions and options of drivers/grpc_client.py. It speaks TLS, as by default.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const (
	kinds    = 3
	maximum  = 16               // messages of one receive
	limit    = 90 * time.Second // a message whose answer died with the leader comes again after a minute
	pollWait = 5 * time.Second
)

var (
	options = map[string]string{}
	report  = struct {
		sync.Mutex
		*json.Encoder
	}{}
)

func main() {
	for _, pair := range os.Args[2:] {
		name, value, _ := strings.Cut(pair, "=")
		options[name] = value
	}
	file, err := os.Create(options["out"])
	check(err)
	report.Encoder = json.NewEncoder(file)
	rocketmq.ResetLogger()
	actions := map[string]func(){"send": send, "load": load, "drain": drain, "simple": simple, "push": push, "transact": transact}
	actions[os.Args[1]]()
	write(map[string]any{"event": "end"})
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func write(fields map[string]any) {
	report.Lock()
	defer report.Unlock()
	check(report.Encode(fields))
}

func number(name string, otherwise int) int {
	value, is := options[name]
	if !is {
		return otherwise
	}
	result, err := strconv.Atoi(value)
	check(err)
	return result
}

func configuration() *rocketmq.Config {
	account := &credentials.SessionCredentials{AccessKey: options["accessKey"], AccessSecret: options["secretKey"]}
	return &rocketmq.Config{Endpoint: options["endpoint"], ConsumerGroup: options["group"], Credentials: account}
}

func subscription() map[string]*rocketmq.FilterExpression {
	expression := rocketmq.SUB_ALL
	if sql, is := options["sql"]; is {
		expression = rocketmq.NewFilterExpressionWithType(sql, rocketmq.SQL92)
	} else if tags, is := options["filter"]; is {
		expression = rocketmq.NewFilterExpression(tags)
	}
	return map[string]*rocketmq.FilterExpression{options["topic"]: expression}
}

func messageOf(n int) *rocketmq.Message {
	message := &rocketmq.Message{Topic: options["topic"], Body: []byte(strconv.Itoa(n))}
	message.SetKeys(fmt.Sprintf("key%d", n))
	message.AddProperty("number", strconv.Itoa(n))
	if tag, is := options["tag"]; is {
		message.SetTag(tag)
	}
	switch options["kind"] {
	case "fifo":
		message.SetMessageGroup(fmt.Sprintf("group%d", n%kinds))
	case "delay":
		message.SetDelayTimestamp(time.Now().Add(time.Duration(number("delayMs", 0)) * time.Millisecond))
	}
	return message
}

func started(producer rocketmq.Producer, err error) rocketmq.Producer {
	check(err)
	check(producer.Start())
	return producer
}

func send() {
	producer := started(rocketmq.NewProducer(configuration(), rocketmq.WithTopics(options["topic"])))
	for n := 0; n < number("count", 0); n++ {
		sendOne(producer, n)
		time.Sleep(time.Duration(number("pauseMs", 0)) * time.Millisecond)
	}
	check(producer.GracefulStop())
}

func sendOne(producer rocketmq.Producer, n int) {
	message, body := messageOf(n), strconv.Itoa(n)
	for attempt := 0; attempt < number("tries", 20); attempt++ {
		receipts, err := producer.Send(context.Background(), message)
		if err == nil {
			write(map[string]any{"event": "sent", "body": body, "id": receipts[0].MessageID, "offset": receipts[0].Offset})
			return
		}
		write(map[string]any{"event": "failed", "body": body, "attempt": attempt, "error": err.Error()})
		time.Sleep(200 * time.Millisecond)
	}
}

// left counts the messages that are still to come; with distinct, one that comes again does not count.
type left struct {
	number int
	taken  map[string]bool
}

func (l *left) take(message *rocketmq.MessageView) {
	body := string(message.GetBody())
	if _, distinct := options["distinct"]; !distinct || !l.taken[body] {
		l.number--
	}
	l.taken[body] = true
}

func await(file string) {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if _, err := os.Stat(file); err == nil {
			return
		}
	}
}

func held() {
	if file, is := options["hold"]; is {
		await(file)
	}
}

func simple() {
	consumer, err := rocketmq.NewSimpleConsumer(configuration(), rocketmq.WithSimpleAwaitDuration(pollWait),
		rocketmq.WithSimpleSubscriptionExpressions(subscription()))
	check(err)
	check(consumer.Start())
	write(map[string]any{"event": "ready"})
	invisible := time.Duration(number("invisibleS", 15)) * time.Second
	left := left{number("count", 0), map[string]bool{}}
	for end := time.Now().Add(limit); left.number > 0 && time.Now().Before(end); {
		messages, err := consumer.Receive(context.Background(), maximum, invisible)
		if err != nil {
			write(map[string]any{"event": "failed", "error": err.Error()})
			time.Sleep(200 * time.Millisecond)
			continue
		}
		for _, message := range messages {
			write(seen("received", message))
			held()
			if string(message.GetBody()) == options["change"] && message.GetDeliveryAttempt() == 1 {
				check(consumer.ChangeInvisibleDuration(message, time.Second))
				continue
			}
			check(consumer.Ack(context.Background(), message))
			left.take(message)
		}
	}
	check(consumer.GracefulStop())
}

func push() {
	times, left := number("times", 0), left{number("count", 0), map[string]bool{}}
	var lock sync.Mutex
	done := make(chan struct{}, 1)
	listen := func(message *rocketmq.MessageView) rocketmq.ConsumerResult {
		write(seen("received", message))
		lock.Lock()
		defer lock.Unlock()
		if left.take(message); left.number <= 0 {
			select {
			case done <- struct{}{}:
			default:
			}
		}
		if string(message.GetBody()) == options["fail"] && times > 0 {
			times--
			return rocketmq.FAILURE
		}
		return rocketmq.SUCCESS
	}
	consumer, err := rocketmq.NewPushConsumer(configuration(), rocketmq.WithPushAwaitDuration(pollWait),
		rocketmq.WithPushSubscriptionExpressions(subscription()),
		rocketmq.WithPushMessageListener(&rocketmq.FuncMessageListener{Consume: listen}))
	check(err)
	check(consumer.Start())
	write(map[string]any{"event": "ready"})
	select {
	case <-done:
	case <-time.After(limit):
	}
	time.Sleep(time.Second) // what ends the last message is sent after the listener has returned
}

func transact() {
	answer := func(message *rocketmq.MessageView) rocketmq.TransactionResolution {
		write(seen("checked", message))
		if n, err := strconv.Atoi(string(message.GetBody())); err == nil && n%kinds != 2 {
			return rocketmq.UNKNOWN
		}
		return rocketmq.COMMIT
	}
	producer := started(rocketmq.NewProducer(configuration(), rocketmq.WithTopics(options["topic"]),
		rocketmq.WithTransactionChecker(&rocketmq.TransactionChecker{Check: answer})))
	var transactions []rocketmq.Transaction
	for n := 0; n < number("count", 0); n++ {
		transaction := producer.BeginTransaction()
		receipts, err := producer.SendWithTransaction(context.Background(), messageOf(n), transaction)
		check(err)
		write(map[string]any{"event": "prepared", "body": strconv.Itoa(n), "id": receipts[0].MessageID})
		transactions = append(transactions, transaction)
	}
	held()
	for n, transaction := range transactions {
		switch n % kinds {
		case 0:
			check(transaction.Commit())
		case 1:
			check(transaction.RollBack())
		}
	}
	await(options["end"])
	check(producer.GracefulStop())
}

func seen(event string, message *rocketmq.MessageView) map[string]any {
	return map[string]any{
		"event": event, "body": string(message.GetBody()), "id": message.GetMessageId(), "topic": message.GetTopic(),
		"tag": message.GetTag(), "keys": message.GetKeys(), "properties": message.GetProperties(),
		"group": message.GetMessageGroup(), "attempt": message.GetDeliveryAttempt(),
	}
}
